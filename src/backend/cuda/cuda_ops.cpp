// SPDX-License-Identifier: Apache-2.0
// One overload per op; the arithmetic is in kernels/ and the libraries.
#include "backend/cuda/cuda_ops.h"

#include <cstdint>
#include <utility>
#include <variant>

#include "backend/cuda/cuda_raii.h"
#include "kernels/launch.h"

namespace ferry::cuda {
namespace {

struct Context {
  CublasLtMatmul& matmul;
  Attention& attention;
  cudaStream_t stream;
  Scratch scratch;
};

kernels::Type type_of(const TensorView& view) {
  return view.dtype == DType::kBf16 ? kernels::Type::kBf16 : kernels::Type::kF32;
}

kernels::Rows rows(const TensorView& view) { return {view.data, view.stride[0]}; }
kernels::ConstRows const_rows(const TensorView& view) { return {view.data, view.stride[0]}; }

void run(const Context& context, const EmbeddingForward& op) {
  kernels::EmbeddingForwardArgs args;
  args.type = type_of(op.table);
  args.n_rows = op.ids.shape[0];
  args.width = op.table.shape[1];
  args.ids = op.ids.as<std::int32_t>();
  args.table = op.table.data;
  args.y = op.y.data;
  FERRY_CUDA_CHECK(kernels::launch_embedding_forward(args, context.stream));
}

void run(const Context& context, const EmbeddingBackward& op) {
  kernels::EmbeddingBackwardArgs args;
  args.type = type_of(op.d_table);
  args.n_rows = op.ids.shape[0];
  args.width = op.d_table.shape[1];
  args.ids = op.ids.as<std::int32_t>();
  args.order = op.order.as<std::int32_t>();
  args.d_y = op.d_y.data;
  args.d_table = op.d_table.data;
  FERRY_CUDA_CHECK(kernels::launch_embedding_backward(args, context.stream));
}

void run(const Context& context, const RmsNormForward& op) {
  kernels::RmsNormForwardArgs args;
  args.type = type_of(op.x);
  args.n_rows = op.x.shape[0];
  args.width = op.x.shape[1];
  args.x = op.x.data;
  args.addend = op.addend.data;
  args.sum = op.sum.data;
  args.weight = op.weight.data;
  args.y = op.y.data;
  args.rstd = op.rstd.as<float>();
  args.eps = op.eps;
  FERRY_CUDA_CHECK(kernels::launch_rmsnorm_forward(args, context.stream));
}

std::size_t scratch_of(const RmsNormBackward& op) {
  return kernels::rmsnorm_backward_scratch_bytes(op.x.shape[0], op.x.shape[1]);
}

void run(const Context& context, const RmsNormBackward& op) {
  kernels::RmsNormBackwardArgs args;
  args.type = type_of(op.x);
  args.n_rows = op.x.shape[0];
  args.width = op.x.shape[1];
  args.d_y = op.d_y.data;
  args.x = op.x.data;
  args.weight = op.weight.data;
  args.rstd = op.rstd.as<float>();
  args.d_residual = op.d_residual.data;
  args.d_x = op.d_x.data;
  args.d_weight = op.d_weight.data;
  args.d_weight_type = type_of(op.d_weight);
  args.accumulate = op.accumulate;
  args.scratch = context.scratch.data;
  FERRY_CUDA_CHECK(kernels::launch_rmsnorm_backward(args, context.stream));
}

std::size_t scratch_of(const Matmul&) { return CublasLtMatmul::kWorkspaceBytes; }

void run(const Context& context, const Matmul& op) { context.matmul.enqueue(op, context.scratch, context.stream); }

void run(const Context& context, const Rope& op) {
  kernels::RopeArgs args;
  args.type = type_of(op.x);
  args.n_batch = op.x.shape[0];
  args.length = op.x.shape[1];
  args.n_heads = op.x.shape[2];
  args.head_width = op.x.shape[3];
  args.batch_stride = op.x.stride[0];
  args.position_stride = op.x.stride[1];
  args.head_stride = op.x.stride[2];
  args.x = op.x.data;
  args.cos = op.cos.as<float>();
  args.sin = op.sin.as<float>();
  args.inverse = op.inverse;
  FERRY_CUDA_CHECK(kernels::launch_rope(args, context.stream));
}

void run(const Context& context, const AttentionForward& op) {
  context.attention.enqueue(op, context.scratch, context.stream);
}

void run(const Context& context, const AttentionBackward& op) {
  context.attention.enqueue(op, context.scratch, context.stream);
}

void run(const Context& context, const SwigluForward& op) {
  kernels::SwigluForwardArgs args;
  args.type = type_of(op.y);
  args.n_rows = op.y.shape[0];
  args.width = op.y.shape[1];
  args.gate = const_rows(op.gate);
  args.up = const_rows(op.up);
  args.y = rows(op.y);
  FERRY_CUDA_CHECK(kernels::launch_swiglu_forward(args, context.stream));
}

void run(const Context& context, const SwigluBackward& op) {
  kernels::SwigluBackwardArgs args;
  args.type = type_of(op.d_y);
  args.n_rows = op.d_y.shape[0];
  args.width = op.d_y.shape[1];
  args.d_y = const_rows(op.d_y);
  args.gate = const_rows(op.gate);
  args.up = const_rows(op.up);
  args.d_gate = rows(op.d_gate);
  args.d_up = rows(op.d_up);
  if (op.y) args.y = rows(op.y);
  FERRY_CUDA_CHECK(kernels::launch_swiglu_backward(args, context.stream));
}

static_assert(kernels::kIgnoredTarget == kIgnoreIndex);

void run(const Context& context, const CrossEntropyChunk& op) {
  kernels::CrossEntropyChunkArgs args;
  args.type = type_of(op.logits);
  args.n_rows = op.logits.shape[0];
  args.width = op.logits.shape[1];
  args.first_token = op.first_token;
  args.logits = const_rows(op.logits);
  args.targets = op.targets.as<std::int32_t>();
  args.lse = op.lse.as<float>();
  args.target_logit = op.target_logit.as<float>();
  FERRY_CUDA_CHECK(kernels::launch_cross_entropy_chunk(args, context.stream));
}

void run(const Context& context, const CrossEntropyLoss& op) {
  kernels::CrossEntropyLossArgs args;
  args.n_rows = op.targets.shape[0];
  args.targets = op.targets.as<std::int32_t>();
  args.lse = op.lse.as<float>();
  args.target_logit = op.target_logit.as<float>();
  args.loss = op.loss.as<float>();
  args.scale = op.scale;
  FERRY_CUDA_CHECK(kernels::launch_cross_entropy_loss(args, context.stream));
}

void run(const Context& context, const CrossEntropyBackward& op) {
  kernels::CrossEntropyBackwardArgs args;
  args.type = type_of(op.logits);
  args.n_rows = op.logits.shape[0];
  args.width = op.logits.shape[1];
  args.first_token = op.first_token;
  args.logits = rows(op.logits);
  args.targets = op.targets.as<std::int32_t>();
  args.lse = op.lse.as<float>();
  args.scale = op.scale;
  FERRY_CUDA_CHECK(kernels::launch_cross_entropy_backward(args, context.stream));
}

void run(const Context& context, const Cast& op) {
  kernels::CastArgs args;
  args.from = type_of(op.x);
  args.to = type_of(op.y);
  args.n = op.x.elems();
  args.x = op.x.data;
  args.y = op.y.data;
  FERRY_CUDA_CHECK(kernels::launch_cast(args, context.stream));
}

void run(const Context& context, const Fill& op) {
  FERRY_CUDA_CHECK(cudaMemsetAsync(op.x.data, op.byte, op.x.size_bytes(), context.stream));
}

std::size_t scratch_of(const SumOfSquares& op) { return kernels::sum_of_squares_scratch_bytes(op.x.elems()); }

void run(const Context& context, const SumOfSquares& op) {
  kernels::SumOfSquaresArgs args;
  args.type = type_of(op.x);
  args.n = op.x.elems();
  args.x = op.x.data;
  if (op.skip) {
    args.width = op.x.shape[1];
    args.skip = op.skip.as<std::int32_t>();
  }
  args.y = op.y.as<float>();
  args.scratch = context.scratch.data;
  FERRY_CUDA_CHECK(kernels::launch_sum_of_squares(args, context.stream));
}

void run(const Context& context, const Adamw& op) {
  kernels::AdamwArgs args;
  args.type = type_of(op.weight);
  args.state = type_of(op.m);
  args.n = op.weight.elems();
  args.weight = op.weight.data;
  args.weight_low = static_cast<std::int16_t*>(op.weight_low.data);
  args.m = op.m.data;
  args.v = op.v.data;
  args.gradient = op.gradient.data;
  args.scalars.beta2 = op.scalars.beta2;
  args.scalars.one_minus_beta1 = op.scalars.one_minus_beta1;
  args.scalars.one_minus_beta2 = op.scalars.one_minus_beta2;
  args.scalars.decay = op.scalars.decay;
  args.scalars.step_size = op.scalars.step_size;
  args.scalars.inverse_sqrt_correction2 = op.scalars.inverse_sqrt_correction2;
  args.scalars.eps = op.scalars.eps;
  args.scalars.gradient_scale = op.scalars.gradient_scale;
  const NoiseKey key = adamw_noise_key(op.scalars, op.parameter);
  args.noise = {.stochastic = op.scalars.rounding == Rounding::kStochastic,
                .first_key = key.first,
                .second_key = key.second,
                .element = static_cast<std::uint32_t>(op.element)};
  FERRY_CUDA_CHECK(kernels::launch_adamw(args, context.stream));
}

// Ops without an overload of their own need no scratch.
template <class AnyOp>
std::size_t scratch_of(const AnyOp&) {
  return 0;
}

}  // namespace

CudaOps::CudaOps(const std::string& device, std::filesystem::path choices_file, AttentionChoice attention)
    : matmul_(device, std::move(choices_file)), attention_(attention) {}

std::size_t CudaOps::scratch_bytes(const Op& op) {
  if (const auto* forward = std::get_if<AttentionForward>(&op)) return attention_.scratch_bytes(*forward);
  if (const auto* backward = std::get_if<AttentionBackward>(&op)) return attention_.scratch_bytes(*backward);
  return std::visit([](const auto& each) { return scratch_of(each); }, op);
}

std::string CudaOps::what_serves(const Op& op) {
  if (const auto* forward = std::get_if<AttentionForward>(&op)) return attention_.what_serves(*forward);
  if (const auto* backward = std::get_if<AttentionBackward>(&op)) return attention_.what_serves(*backward);
  return "";
}

void CudaOps::enqueue(cudaStream_t stream, const Op& op, Scratch scratch) {
  const Context context{matmul_, attention_, stream, scratch};
  std::visit([&context](const auto& each) { run(context, each); }, op);
}

}  // namespace ferry::cuda
