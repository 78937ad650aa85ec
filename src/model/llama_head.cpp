// SPDX-License-Identifier: Apache-2.0
// The output head by chunks of the vocabulary: final norm, logits, cross-entropy, and their gradients.
#include "model/llama.h"

namespace ferry {
namespace {

/// The logits buffer, seen as (N, v) for a chunk of v rows.
TensorView chunk_logits(const HeadChunk& chunk, const HeadWork& work) {
  const TensorView& logits = work.logits;
  return {logits.data, logits.dtype, {logits.shape[0], chunk.weight.shape[0]}};
}

}  // namespace

void head_norm(const OpContext& context, const LlamaShape& shape, const TensorView& norm_weight, const TensorView& x,
               const HeadWork& work) {
  context.run(RmsNormForward{
      .x = x, .addend = {}, .sum = {}, .weight = norm_weight, .y = work.hidden, .rstd = work.rstd, .eps = shape.eps});
}

void head_logits(const OpContext& context, const HeadChunk& chunk, const HeadWork& work) {
  context.run(Matmul{.a = work.hidden,
                     .b = chunk.weight,
                     .c = {},
                     .d = chunk_logits(chunk, work),
                     .transpose_a = false,
                     .transpose_b = true});
}

void head_chunk_forward(const OpContext& context, const HeadChunk& chunk, const TensorView& targets,
                        const HeadWork& work) {
  head_logits(context, chunk, work);
  context.run(CrossEntropyChunk{.logits = chunk_logits(chunk, work),
                                .targets = targets,
                                .lse = work.lse,
                                .target_logit = work.target_logit,
                                .first_token = chunk.first_token});
}

void head_loss(const OpContext& context, const TensorView& targets, float scale, const TensorView& loss,
               const HeadWork& work) {
  context.run(CrossEntropyLoss{
      .targets = targets, .lse = work.lse, .target_logit = work.target_logit, .loss = loss, .scale = scale});
}

void head_chunk_backward(const OpContext& context, const HeadChunk& chunk, const TensorView& targets,
                         const HeadChunkBackward& how, const TensorView& d_weight, const HeadWork& work) {
  const TensorView logits = chunk_logits(chunk, work);
  if (!how.logits_fresh) head_logits(context, chunk, work);
  context.run(CrossEntropyBackward{
      .logits = logits, .targets = targets, .lse = work.lse, .first_token = chunk.first_token, .scale = how.scale});
  context.run(Matmul{.a = logits, .b = work.hidden, .c = {}, .d = d_weight, .transpose_a = true, .transpose_b = false});
  context.run(
      Matmul{.a = logits, .b = chunk.weight, .c = how.first ? TensorView() : work.d_hidden, .d = work.d_hidden});
}

void head_norm_backward(const OpContext& context, const TensorView& norm_weight, const TensorView& x,
                        const TensorView& d_stream, const TensorView& d_norm_weight, const HeadWork& work) {
  if (work.d_norm.data != work.d_hidden.data) context.run(Cast{.x = work.d_hidden, .y = work.d_norm});
  context.run(RmsNormBackward{.d_y = work.d_norm,
                              .x = x,
                              .weight = norm_weight,
                              .rstd = work.rstd,
                              .d_residual = {},
                              .d_x = d_stream,
                              .d_weight = d_norm_weight});
}

}  // namespace ferry
