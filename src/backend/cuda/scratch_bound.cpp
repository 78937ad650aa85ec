// SPDX-License-Identifier: Apache-2.0
// Sizes as in kernels/ and in the wrappers of the libraries; a test on a GPU compares them.
#include "backend/cuda/scratch_bound.h"

#include <algorithm>
#include <variant>

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

/// The deterministic backward keeps partial sums of d_q, (T, D) f32 for every 128 keys (heads up to 64 wide) or 256
/// (wider ones): 2 T T bytes a head at the common widths. Around them lie the sum itself and d_k, d_v for every query
/// head. Calls are split until they stay below the limit.
std::size_t bound(const AttentionBackward& op) {
  const std::int64_t heads = op.q.shape[0] * op.q.shape[2];
  const std::size_t plain = bytes_of(heads * op.q.shape[1]);
  if (op.q.dtype != DType::kBf16) return plain;
  const std::int64_t length = round_up(std::max(op.q.shape[1], op.k.shape[1]), 256);
  const std::int64_t width = round_up(op.q.shape[3], 64);
  const std::int64_t partial_sums = length / (width <= 64 ? 128 : 256);
  const std::int64_t elems = heads * length * (width * (partial_sums + 3) + 4);
  return std::max(plain, std::min(bytes_of(elems), kMaxAttentionWorkspaceBytes));
}

// All other ops need none; cuDNN's forward pass less than a matrix product.
template <class AnyOp>
std::size_t bound(const AnyOp&) {
  return 0;
}

}  // namespace

std::size_t ScratchBound::scratch_bytes(const Op& op) const {
  return std::visit([](const auto& each) { return bound(each); }, op);
}

}  // namespace ferry::cuda
