// SPDX-License-Identifier: Apache-2.0
// Views of a step's activations for the batch at hand.
#include <algorithm>

#include "core/error.h"
#include "offload/step_buffers.h"

namespace ferry {

std::vector<MicroBatch> StepBuffers::micro_batches(const LlamaShape& batch) const {
  std::vector<MicroBatch> result;
  for (std::int64_t first = 0; first < batch.B; first += options_.batch_size) {
    MicroBatch micro{.shape = batch, .first_sequence = first};
    micro.shape.B = std::min(options_.batch_size, batch.B - first);
    result.push_back(micro);
  }
  return result;
}

std::vector<RowRange> StepBuffers::head_rows(const LlamaShape& batch) const {
  const std::int64_t most = head_mode() == HeadMode::kTokens ? options_.head_tokens : options_.batch_size * batch.T;
  std::vector<RowRange> ranges;
  for (std::int64_t first = 0; first < batch.N(); first += most) {
    ranges.push_back({first, std::min(most, batch.N() - first)});
  }
  return ranges;
}

TensorView StepBuffers::view(Id id, DType dtype, std::initializer_list<std::int64_t> shape) const {
  if (plan_.size_bytes(id) == 0) return {};
  const TensorView result(static_cast<std::byte*>(arena_) + plan_.offset(id), dtype, shape);
  FERRY_ASSERT(result.size_bytes() <= plan_.size_bytes(id));
  return result;
}

std::int64_t StepBuffers::mlp_rows(const LlamaShape& s) const {
  return options_.mlp_cut.by == MlpCut::By::kTokens ? std::min(options_.mlp_cut.size, s.N()) : s.N();
}

std::int64_t StepBuffers::mlp_features(const LlamaShape& s) const {
  return options_.mlp_cut.by == MlpCut::By::kFeatures ? std::min(options_.mlp_cut.size, s.F) : s.F;
}

TensorView StepBuffers::residual(const LlamaShape& s, std::int64_t layer) const {
  const auto index = static_cast<std::size_t>(layer) % residuals_.size();
  return view(residuals_[index], dtype_, {s.N(), s.C});
}

const StepBuffers::KeptIds& StepBuffers::kept_ids(const MicroBatch& micro, std::int64_t layer) const {
  if (!keeps(layer)) return shared_kept_;
  const std::int64_t kept_layer = layer - (n_layers_ - n_kept_layers());
  return kept_[static_cast<std::size_t>(kept_layer * options_.accumulate + micro.first_sequence / options_.batch_size)];
}

LayerKept StepBuffers::kept(const MicroBatch& micro, std::int64_t layer) const {
  const LlamaShape& s = micro.shape;
  const KeptIds& ids = kept_ids(micro, layer);
  return {.qkv = view(ids.qkv, dtype_, {s.N(), s.qkv_width()}),
          .attn = view(ids.attn, dtype_, {s.N(), s.H * s.D}),
          .lse = view(ids.lse, DType::kF32, {s.B, s.H, s.T}),
          .x_mid = view(ids.x_mid, dtype_, {s.N(), s.C}),
          .gate_up = view(ids.gate_up, dtype_, {mlp_rows(s), 2 * mlp_features(s)}),
          .rstd_in = view(ids.rstd_in, DType::kF32, {s.N()}),
          .rstd_mid = view(ids.rstd_mid, DType::kF32, {s.N()})};
}

LayerWork StepBuffers::work(const LlamaShape& s) const {
  return {.norm = view(work_.norm, dtype_, {s.N(), s.C}),
          .proj = view(work_.proj, dtype_, {s.N(), s.C}),
          .act = view(work_.act, dtype_, {mlp_rows(s), mlp_features(s)}),
          .mlp_sum = view(work_.mlp_sum, DType::kF32, {s.N(), s.C}),
          .d_norm = view(work_.d_norm, dtype_, {s.N(), s.C}),
          .d_attn = view(work_.d_attn, dtype_, {s.N(), s.H * s.D}),
          .d_qkv = view(work_.d_qkv, dtype_, {s.N(), s.qkv_width()})};
}

TensorView StepBuffers::f32_like(Id id, const TensorView& like) const {
  TensorView result = like;
  result.data = view(id, DType::kF32, {like.elems()}).data;
  result.dtype = DType::kF32;
  return result;
}

LayerGradients StepBuffers::gradients(const LayerTensors& rounded, bool several) const {
  LayerTensors sums = rounded;
  const bool rounds = dtype_ != DType::kF32;
  if (rounds && (several || options_.mlp_cut.by == MlpCut::By::kTokens)) {
    sums.gate_up = f32_like(sums_.gate_up, rounded.gate_up);
    sums.down = f32_like(sums_.down, rounded.down);
  }
  if (rounds && several) {
    sums.input_norm = f32_like(sums_.input_norm, rounded.input_norm);
    sums.qkv = f32_like(sums_.qkv, rounded.qkv);
    sums.out_proj = f32_like(sums_.out_proj, rounded.out_proj);
    sums.post_norm = f32_like(sums_.post_norm, rounded.post_norm);
  }
  return {.sums = sums, .rounded = rounded};
}

HeadWork StepBuffers::head(const LlamaShape& s) const {
  return {.hidden = view(head_.hidden, dtype_, {s.N(), s.C}),
          .rstd = view(head_.rstd, DType::kF32, {s.N()}),
          .lse = view(head_.lse, DType::kF32, {s.N()}),
          .target_logit = view(head_.target_logit, DType::kF32, {s.N()}),
          .d_hidden = d_hidden_is_a_sum() ? view(head_.d_hidden, DType::kF32, {s.N(), s.C}) : d_stream(s)};
}

TensorView StepBuffers::logits(RowRange rows, const Segment& segment) const {
  const bool all = head_mode() == HeadMode::kLogits;
  const Id id = logits_[all ? static_cast<std::size_t>(segment.index) : 0];
  const std::int64_t first = all ? rows.first : 0;
  return view(id, dtype_, {first + rows.count, segment.n_rows}).rows(first, rows.count);
}

TensorView StepBuffers::head_sum(const TensorView& rounded, bool several) const {
  return several && dtype_ != DType::kF32 ? f32_like(sums_.head, rounded) : rounded;
}

TensorView StepBuffers::head_table(const LlamaShape& s) const { return view(head_.table, dtype_, {s.V, s.C}); }

TensorView StepBuffers::head_table_gradient(const LlamaShape& s) const {
  return view(head_.table_gradient, DType::kF32, {s.V, s.C});
}

TensorView StepBuffers::d_stream(const LlamaShape& s) const { return view(work_.d_stream, dtype_, {s.N(), s.C}); }

RopeTable StepBuffers::rope(const LlamaShape& s, std::int64_t first) const {
  const auto rows = [&](Id id) { return view(id, DType::kF32, {n_positions_, s.D / 2}).rows(first, s.T); };
  return {.cos = rows(step_.cos), .sin = rows(step_.sin)};
}

TensorView StepBuffers::cache() const {
  return view(step_.cache, dtype_, {n_layers_ * options_.cache_tokens, cache_width_});
}

TensorView StepBuffers::cache(std::int64_t layer, std::int64_t n_positions) const {
  return cache().rows(layer * options_.cache_tokens, n_positions);
}

TensorView StepBuffers::ids(const LlamaShape& s) const { return view(step_.ids, DType::kI32, {s.N()}); }
TensorView StepBuffers::targets(const LlamaShape& s) const { return view(step_.targets, DType::kI32, {s.N()}); }
TensorView StepBuffers::order(const LlamaShape& s) const { return view(step_.order, DType::kI32, {s.N()}); }

TensorView StepBuffers::distinct_ids(const LlamaShape& s) const {
  return view(step_.distinct_ids, DType::kI32, {s.N()});
}
TensorView StepBuffers::row_mask() const { return view(step_.row_mask, DType::kI32, {vocab_size_}); }

TensorView StepBuffers::loss(std::int64_t index) const {
  return view(step_.losses, DType::kF32, {Engine::kLossHistory + 1}).rows(index, 1);
}

Scratch StepBuffers::scratch() const {
  return {view(step_.scratch, DType::kF32, {0}).data, plan_.size_bytes(step_.scratch)};
}

void StepBuffers::poison(const OpContext& context) const {
  for (const auto& [offset, size_bytes] : plan_.transient()) {
    void* data = static_cast<std::byte*>(arena_) + offset;
    context.run(Fill{.x = {data, DType::kI32, {static_cast<std::int64_t>(size_bytes / 4)}}, .byte = Fill::kNaNByte});
  }
}

}  // namespace ferry
