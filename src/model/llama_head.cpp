// SPDX-License-Identifier: Apache-2.0
// The output head by chunks of the vocabulary: final norm, logits, cross-entropy, and their gradients.
#include "model/layer_parts.h"
#include "model/llama.h"

namespace ferry {

HeadWork HeadWork::rows(std::int64_t first, std::int64_t count) const {
  const auto part = [&](const TensorView& whole) { return whole ? whole.rows(first, count) : whole; };
  return {.hidden = part(hidden),
          .rstd = part(rstd),
          .lse = part(lse),
          .target_logit = part(target_logit),
          .d_hidden = part(d_hidden)};
}

void head_norm(const HeadCall& call, const TensorView& norm_weight, const TensorView& x, float eps) {
  const HeadWork& work = call.work;
  call.context.run(RmsNormForward{
      .x = x, .addend = {}, .sum = {}, .weight = norm_weight, .y = work.hidden, .rstd = work.rstd, .eps = eps});
}

void head_logits(const HeadCall& call, const HeadChunk& chunk) {
  call.context.run(forward_product(call.work.hidden, chunk.weight, chunk.logits));
}

void head_chunk_forward(const HeadCall& call, const HeadChunk& chunk) {
  head_logits(call, chunk);
  call.context.run(CrossEntropyChunk{.logits = chunk.logits,
                                     .targets = call.targets,
                                     .lse = call.work.lse,
                                     .target_logit = call.work.target_logit,
                                     .first_token = chunk.first_token});
}

void head_loss(const HeadCall& call, float scale, const TensorView& loss) {
  call.context.run(CrossEntropyLoss{.targets = call.targets,
                                    .lse = call.work.lse,
                                    .target_logit = call.work.target_logit,
                                    .loss = loss,
                                    .scale = scale});
}

void head_chunk_backward(const HeadCall& call, const HeadChunk& chunk, const HeadChunkBackward& how) {
  const HeadWork& work = call.work;
  if (!how.logits_fresh) head_logits(call, chunk);
  call.context.run(CrossEntropyBackward{.logits = chunk.logits,
                                        .targets = call.targets,
                                        .lse = work.lse,
                                        .first_token = chunk.first_token,
                                        .scale = how.scale});
  call.context.run(weight_gradient(chunk.logits, work.hidden, how.d_weight, how.add_weight));
  call.context.run(input_gradient(chunk.logits, chunk.weight, work.d_hidden, how.add_hidden));
}

void head_norm_backward(const HeadCall& call, const HeadNormBackward& tensors) {
  const HeadWork& work = call.work;
  const bool fits = work.d_hidden.dtype == tensors.x.dtype;
  if (!fits) round_once(call.context, work.d_hidden, tensors.d_stream);
  call.context.run(RmsNormBackward{.d_y = fits ? work.d_hidden : tensors.d_stream,
                                   .x = tensors.x,
                                   .weight = tensors.norm_weight,
                                   .rstd = work.rstd,
                                   .d_residual = {},
                                   .d_x = tensors.d_stream,
                                   .d_weight = tensors.d_norm_weight});
}

}  // namespace ferry
