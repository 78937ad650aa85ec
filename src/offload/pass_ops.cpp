// SPDX-License-Identifier: Apache-2.0
// Loops over micro-batches, and the three ways through the head.
#include "offload/pass_ops.h"

namespace ferry {

PassOps::PassOps(const StepBuffers& buffers, const OpContext& context, const LlamaShape& batch, Kind kind,
                 std::int64_t n_cached)
    : buffers_(buffers),
      context_(context),
      batch_(batch),
      kind_(kind),
      n_cached_(n_cached),
      mode_(buffers.head_mode()),
      micro_batches_(buffers.micro_batches(batch)),
      head_rows_(buffers.head_rows(batch)) {}

LayerCall PassOps::layer_call(const MicroBatch& micro, std::int64_t layer, const TensorView& weights) const {
  return {.context = context_,
          .shape = micro.shape,
          .rope = buffers_.rope(micro.shape, n_cached_),
          .weights = layer_tensors(micro.shape, weights.dtype, weights.data),
          .x = micro.rows_of(buffers_.residual(batch_, layer)),
          .kept = buffers_.kept(micro, layer),
          .work = buffers_.work(micro.shape),
          .mlp_cut = buffers_.options().mlp_cut,
          .cache = kind_ == Kind::kCached ? buffers_.cache(layer, n_cached_ + micro.shape.T) : TensorView()};
}

void PassOps::forward_layer(std::int64_t layer, const TensorView& weights) const {
  const TensorView x_out = buffers_.residual(batch_, layer + 1);
  for (const MicroBatch& micro : micro_batches_) {
    layer_forward(layer_call(micro, layer, weights), micro.rows_of(x_out));
  }
}

/// True when work.norm is left as layer_backward can use it.
bool PassOps::recompute(const LayerCall& call, std::int64_t layer) const {
  if (buffers_.keeps(layer)) return false;
  if (buffers_.options().recompute == Recompute::kFull) {
    layer_forward(call, call.work.proj);
  } else {
    layer_recompute(call);
  }
  return true;
}

void PassOps::backward_layer(std::int64_t layer, const TensorView& weights, const TensorView& gradient) const {
  const TensorView d_stream = buffers_.d_stream(batch_);
  LayerGradients gradients =
      buffers_.gradients(layer_tensors(batch_, gradient.dtype, gradient.data), micro_batches_.size() > 1);
  for (const MicroBatch& micro : micro_batches_) {
    gradients.add = &micro != &micro_batches_.front();
    gradients.complete = &micro == &micro_batches_.back();
    const LayerCall call = layer_call(micro, layer, weights);
    const bool norm_is_fresh = recompute(call, layer);
    layer_backward(call, micro.rows_of(d_stream), gradients, norm_is_fresh);
  }
}

HeadCall PassOps::head_call(RowRange rows) const {
  return {.context = context_,
          .targets = buffers_.targets(batch_).rows(rows.first, rows.count),
          .work = buffers_.head(batch_).rows(rows.first, rows.count)};
}

HeadChunk PassOps::head_chunk(const Segment& chunk, const TensorView& weights, RowRange rows) const {
  return {.weight = weights.reshape({chunk.n_rows, batch_.C}),
          .logits = buffers_.logits(rows, chunk),
          .first_token = chunk.first_row};
}

void PassOps::head_norm(const TensorView& norm_weight) const {
  const TensorView x = buffers_.residual(batch_, buffers_.n_layers());
  ferry::head_norm(head_call({0, batch_.N()}), norm_weight, x, batch_.eps);
}

void PassOps::head_forward(const Segment& chunk, const TensorView& weights) const {
  if (mode_ == HeadMode::kTokens) {
    const TensorView place = buffers_.head_table(batch_).rows(chunk.first_row, chunk.n_rows);
    return context_.run(Cast{.x = weights.reshape({chunk.n_rows, batch_.C}), .y = place});
  }
  for (const RowRange& rows : head_rows_) head_chunk_forward(head_call(rows), head_chunk(chunk, weights, rows));
}

void PassOps::head_loss(float scale, const TensorView& loss) const {
  if (mode_ == HeadMode::kTokens) head_by_tokens(scale);
  ferry::head_loss(head_call({0, batch_.N()}), scale, loss);
}

/// Rows of the whole vocabulary: their logits are made once, and become their gradient before the next rows come.
void PassOps::head_by_tokens(float scale) const {
  const TensorView table = buffers_.head_table(batch_);
  const Segment whole{.kind = Segment::Kind::kHead, .elems = table.elems(), .n_rows = batch_.V};
  for (const RowRange& rows : head_rows_) {
    const HeadCall call = head_call(rows);
    const HeadChunk chunk = head_chunk(whole, table, rows);
    head_chunk_forward(call, chunk);
    if (kind_ != Kind::kTraining) continue;
    head_chunk_backward(call, chunk,
                        {.scale = scale,
                         .logits_fresh = true,
                         .d_weight = buffers_.head_table_gradient(batch_),
                         .add_weight = rows.first > 0});
  }
}

/// The last chunk's last rows are still there from the forward pass, so rows are visited in descending order too.
void PassOps::head_backward(const Segment& chunk, const TensorView& weights, const HeadGradient& target) const {
  const TensorView rounded = target.gradient.reshape({chunk.n_rows, batch_.C});
  if (mode_ == HeadMode::kTokens) {
    return round_once(context_, buffers_.head_table_gradient(batch_).rows(chunk.first_row, chunk.n_rows), rounded);
  }
  const TensorView sum = buffers_.head_sum(rounded, head_rows_.size() > 1);
  const bool last_chunk = chunk.first_row + chunk.n_rows == batch_.V;
  for (std::size_t i = head_rows_.size(); i-- > 0;) {
    const bool last_rows = i + 1 == head_rows_.size();
    head_chunk_backward(head_call(head_rows_[i]), head_chunk(chunk, weights, head_rows_[i]),
                        {.scale = target.scale,
                         .logits_fresh = mode_ == HeadMode::kLogits || (last_chunk && last_rows),
                         .d_weight = sum,
                         .add_weight = !last_rows,
                         .add_hidden = !last_chunk});
  }
  round_once(context_, sum, rounded);
}

void PassOps::head_norm_backward(const TensorView& norm_weight, const TensorView& d_norm_weight) const {
  ferry::head_norm_backward(head_call({0, batch_.N()}), {.norm_weight = norm_weight,
                                                         .x = buffers_.residual(batch_, buffers_.n_layers()),
                                                         .d_stream = buffers_.d_stream(batch_),
                                                         .d_norm_weight = d_norm_weight});
}

}  // namespace ferry
