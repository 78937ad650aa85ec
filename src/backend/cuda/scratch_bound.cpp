// SPDX-License-Identifier: Apache-2.0
// Sizes as in kernels/ and in the wrappers of the libraries; a test on a GPU compares them.
#include "backend/cuda/scratch_bound.h"

#include <algorithm>
#include <array>
#include <limits>
#include <variant>

#include "backend/cuda/attention_words.h"
#include "backend/cuda/workspace.h"
#include "core/int_math.h"

namespace ferry::cuda {
namespace {

std::size_t bytes_of(std::int64_t elems) { return static_cast<std::size_t>(elems) * sizeof(float); }

std::size_t bound(const Matmul&) { return kMatmulWorkspaceBytes; }

/// One row of partial sums for each block of rows.
std::size_t bound(const RmsNormBackward& op) {
  constexpr std::int64_t kMaxRowBlocks = 264, kPackElems = 8;
  return bytes_of(std::min(op.x.shape[0], kMaxRowBlocks) * round_up(op.x.shape[1], kPackElems));
}

std::size_t bound(const SumOfSquares& op) {
  constexpr std::int64_t kBlockElems = 32768;
  return bytes_of(ceil_div(op.x.elems(), kBlockElems));
}

/// One number a row and head.
std::size_t plain_bytes(const AttentionBackward& op) { return bytes_of(op.q.shape[0] * op.q.shape[2] * op.q.shape[1]); }

constexpr std::int64_t kFusedPaddedRows = 128;

/// What ferry's fused kernels take where rows are aligned; unaligned rows need less.
template <class AttentionOp>
bool is_fused(const AttentionOp& op) {
  constexpr std::array<std::int64_t, 4> kWidths = {64, 80, 96, 128};
  const std::int64_t n_rows = op.q.shape[0] * op.q.shape[2] * (op.k.shape[1] + kFusedPaddedRows);
  return op.q.dtype == DType::kBf16 && std::ranges::count(kWidths, op.q.shape[3]) > 0 && op.scale > 0 &&
         n_rows <= std::numeric_limits<std::int32_t>::max();
}

/// Two numbers a padded row and head.
std::size_t fused_bytes(const AttentionBackward& op) {
  return 2 * bytes_of(op.q.shape[0] * op.q.shape[2] * round_up(op.q.shape[1], kFusedPaddedRows));
}

/// The deterministic backward keeps partial sums of d_q, (T, D) f32 for every 128 keys (heads up to 64 wide) or 256
/// (wider ones): 2 T T bytes a head at the common widths. Around them lie the sum itself and d_k, d_v for every query
/// head. Calls are split until they stay below the limit.
std::size_t cudnn_bytes(const AttentionBackward& op) {
  const std::int64_t heads = op.q.shape[0] * op.q.shape[2];
  const std::int64_t length = round_up(std::max(op.q.shape[1], op.k.shape[1]), 256);
  const std::int64_t width = round_up(op.q.shape[3], 64);
  const std::int64_t partial_sums = length / (width <= 64 ? 128 : 256);
  const std::int64_t elems = heads * length * (width * (partial_sums + 3) + 4);
  return std::min(bytes_of(elems), kMaxAttentionWorkspaceBytes);
}

template <class AttentionOp>
bool may_be_cudnn(const AttentionOp& op, AttentionChoice choice) {
  return choice != AttentionChoice::kFerry && op.q.dtype == DType::kBf16;
}

std::size_t attention_bound(const AttentionBackward& op, AttentionChoice choice) {
  if (choice != AttentionChoice::kCudnn && is_fused(op)) return fused_bytes(op);
  return std::max(plain_bytes(op), may_be_cudnn(op, choice) ? cudnn_bytes(op) : 0);
}

template <class AttentionOp>
std::string attention_server(const AttentionOp& op, AttentionChoice choice) {
  if (choice != AttentionChoice::kCudnn && is_fused(op)) return by_fused(op);
  if (may_be_cudnn(op, choice)) return by_cudnn(op, choice, "cuDNN, or plain kernels where it refuses");
  return fmt::format("{}: {}", kPlainKernels, by_plain_since(op, choice));
}

// All other ops need none; cuDNN's forward pass less than a matrix product.
template <class AnyOp>
std::size_t bound(const AnyOp&) {
  return 0;
}

}  // namespace

std::size_t ScratchBound::scratch_bytes(const Op& op) const {
  if (const auto* backward = std::get_if<AttentionBackward>(&op)) return attention_bound(*backward, attention_);
  return std::visit([](const auto& each) { return bound(each); }, op);
}

bool ScratchBound::is_exact(const Op& op) const {
  const auto* backward = std::get_if<AttentionBackward>(&op);
  if (backward == nullptr || !may_be_cudnn(*backward, attention_)) return true;
  return attention_ != AttentionChoice::kCudnn && is_fused(*backward);
}

std::string ScratchBound::what_serves(const Op& op) const {
  if (const auto* forward = std::get_if<AttentionForward>(&op)) return attention_server(*forward, attention_);
  if (const auto* backward = std::get_if<AttentionBackward>(&op)) return attention_server(*backward, attention_);
  return "";
}

}  // namespace ferry::cuda
