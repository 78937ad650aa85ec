// SPDX-License-Identifier: Apache-2.0
// ferry's fused kernels come first: where they and cuDNN take the same op they are faster in a deterministic backward
// pass, and their scratch is linear in the length (docs/kernels.md). The plain kernels take what is left.
#include "backend/cuda/attention.h"

#include <algorithm>
#include <concepts>

#include "backend/cuda/attention_words.h"
#include "backend/cuda/cuda_raii.h"
#include "core/error.h"
#include "core/log.h"
#include "kernels/attention.h"
#include "kernels/attention_plain.h"

namespace ferry::cuda {
namespace {

kernels::HeadRows head_rows(const TensorView& view) {
  return {view.data, view.stride[0], view.stride[1], view.stride[2]};
}

template <class Op>
kernels::AttentionShape shape_of(const Op& op) {
  kernels::AttentionShape shape;
  shape.batch = op.q.shape[0];
  shape.n_queries = op.q.shape[1];
  shape.n_keys = op.k.shape[1];
  shape.n_heads = op.q.shape[2];
  shape.n_kv_heads = op.k.shape[2];
  shape.width = op.q.shape[3];
  shape.type = op.q.dtype == DType::kBf16 ? kernels::Type::kBf16 : kernels::Type::kF32;
  shape.scale = op.scale;
  return shape;
}

kernels::AttentionForwardArgs args_of(const AttentionForward& op, void*) {
  kernels::AttentionForwardArgs args;
  args.shape = shape_of(op);
  args.q = head_rows(op.q);
  args.k = head_rows(op.k);
  args.v = head_rows(op.v);
  args.o = head_rows(op.o);
  args.lse = op.lse.as<float>();
  return args;
}

kernels::AttentionBackwardArgs args_of(const AttentionBackward& op, void* scratch) {
  kernels::AttentionBackwardArgs args;
  args.shape = shape_of(op);
  args.q = head_rows(op.q);
  args.k = head_rows(op.k);
  args.v = head_rows(op.v);
  args.o = head_rows(op.o);
  args.lse = op.lse.as<float>();
  args.d_o = head_rows(op.d_o);
  args.d_q = head_rows(op.d_q);
  args.d_k = head_rows(op.d_k);
  args.d_v = head_rows(op.d_v);
  args.scratch = scratch;
  return args;
}

/// For questions whose answer may not depend on where the data lie.
template <class Op>
Op without_data(Op op) {
  for (TensorView* view : {&op.q, &op.k, &op.v, &op.o, &op.lse}) view->data = nullptr;
  if constexpr (std::same_as<Op, AttentionBackward>) {
    for (TensorView* view : {&op.d_o, &op.d_q, &op.d_k, &op.d_v}) view->data = nullptr;
  }
  return op;
}

template <class Op>
void check_plain(const Op& op) {
  FERRY_CHECK(op.q.shape[3] <= kernels::kAttentionPlainMaxWidth, kShape,
              "{}: q is {}, expected heads of at most {} elements: a wider one runs with --backend cpu", Op::kName,
              op.q.describe(), kernels::kAttentionPlainMaxWidth);
}

}  // namespace

Attention::Attention(AttentionChoice choice) : choice_(choice) {
  switch (choice_) {
    case AttentionChoice::kAuto:
      log::info("attention: ferry's fused kernels for {}, which need the least scratch; else cuDNN, else plain kernels",
                kFusedOps);
      break;
    case AttentionChoice::kFerry:
      log::info("attention = ferry: fused kernels for {}, else plain kernels", kFusedOps);
      break;
    case AttentionChoice::kCudnn:
      FERRY_CHECK(cudnn().unavailable().empty(), kConfig, "attention = cudnn: {}; or set attention = auto",
                  cudnn().unavailable());
      log::info("attention = cudnn: {} where it takes an op, else plain kernels", cudnn().version());
      break;
  }
}

std::string Attention::describe() const {
  if (choice_ == AttentionChoice::kCudnn) return "attention by " + cudnn_->version();
  return choice_ == AttentionChoice::kFerry ? "attention ferry" : "attention auto";
}

CudnnAttention& Attention::cudnn() {
  std::call_once(cudnn_once_, [this] { cudnn_ = std::make_unique<CudnnAttention>(); });
  return *cudnn_;
}

template <class Op>
Attention::Server Attention::server_of(const Op& op, void* scratch) {
  const bool is_bf16 = op.q.dtype == DType::kBf16;
  if (choice_ != AttentionChoice::kCudnn && kernels::attention_supported(args_of(op, scratch))) return Server::kFused;
  if (choice_ != AttentionChoice::kFerry && is_bf16 && cudnn().supported(op)) return Server::kCudnn;
  return Server::kPlain;
}

template <class Op>
std::string Attention::why_plain(const Op& op) {
  if (std::string reason = by_plain_since(op, choice_); !reason.empty()) return reason;
  if (!cudnn().unavailable().empty()) return cudnn().unavailable();
  return choice_ == AttentionChoice::kCudnn ? "cuDNN does not take it"
                                            : "neither ferry's fused kernels nor cuDNN take it";
}

/// Once: they are many times slower.
template <class Op>
void Attention::say_plain(const Op& op) {
  std::call_once(said_plain_, [&] {
    log::info("{} of q {}, k {} runs on {}: {}", op.kName, op.q.describe(), op.k.describe(), kPlainKernels,
              why_plain(op));
  });
}

template <class Op>
std::string Attention::what_serves(const Op& op) {
  switch (server_of(without_data(op), nullptr)) {
    case Server::kFused: return by_fused(op);
    case Server::kCudnn: return by_cudnn(op, choice_, cudnn().version());
    case Server::kPlain: break;
  }
  return fmt::format("{}: {}", kPlainKernels, why_plain(op));
}

template std::string Attention::what_serves(const AttentionForward& op);
template std::string Attention::what_serves(const AttentionBackward& op);

std::size_t Attention::scratch_bytes(const AttentionForward& op) {
  const AttentionForward shapes = without_data(op);
  return server_of(shapes, nullptr) == Server::kCudnn ? cudnn().scratch_bytes(shapes) : 0;
}

std::size_t Attention::scratch_bytes(const AttentionBackward& op) {
  const AttentionBackward shapes = without_data(op);
  const std::size_t plain_bytes = kernels::attention_plain_backward_scratch_bytes(shape_of(op));
  switch (server_of(shapes, nullptr)) {
    case Server::kFused: return std::max(plain_bytes, kernels::attention_backward_scratch_bytes(shape_of(op)));
    case Server::kCudnn: return std::max(plain_bytes, cudnn().scratch_bytes(shapes));
    case Server::kPlain: break;
  }
  return plain_bytes;
}

void Attention::enqueue(const AttentionForward& op, Scratch scratch, cudaStream_t stream) {
  const kernels::AttentionForwardArgs args = args_of(op, scratch.data);
  switch (server_of(op, scratch.data)) {
    case Server::kFused: FERRY_CUDA_CHECK(kernels::launch_attention_forward(args, stream)); return;
    case Server::kCudnn: cudnn().forward(op, scratch, stream); return;
    case Server::kPlain: break;
  }
  check_plain(op);
  say_plain(op);
  FERRY_CUDA_CHECK(kernels::launch_attention_plain_forward(args, stream));
}

void Attention::enqueue(const AttentionBackward& op, Scratch scratch, cudaStream_t stream) {
  const kernels::AttentionBackwardArgs args = args_of(op, scratch.data);
  switch (server_of(op, scratch.data)) {
    case Server::kFused: FERRY_CUDA_CHECK(kernels::launch_attention_backward(args, stream)); return;
    case Server::kCudnn: cudnn().backward(op, scratch, stream); return;
    case Server::kPlain: break;
  }
  check_plain(op);
  say_plain(op);
  FERRY_CUDA_CHECK(kernels::launch_attention_plain_backward(args, stream));
}

}  // namespace ferry::cuda
