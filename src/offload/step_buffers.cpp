// SPDX-License-Identifier: Apache-2.0
// Sizes, lifetimes and views of a step's activations.
#include "offload/step_buffers.h"

namespace ferry {
namespace {

using enum Phase;

constexpr PhaseSet kForward{kForwardAttention, kForwardMlp};
constexpr PhaseSet kRecompute{kRecomputeAttention, kRecomputeMlp};
constexpr PhaseSet kBackward{kBackwardMlp, kBackwardAttention, kBackwardInput};
constexpr PhaseSet kAttentionKept = PhaseSet{kForwardAttention, kBackwardMlp, kBackwardAttention} | kRecompute;

}  // namespace

StepBuffers::StepBuffers(MemoryPlan& plan, Backend& backend, const ModelConfig& config, const EngineOptions& options,
                         const ParameterTable& parameters)
    : plan_(plan),
      dtype_(options.dtype),
      training_(options.training),
      recompute_(options.recompute),
      n_layers_(config.n_layers),
      vocab_chunk_(parameters.segment(parameters.head_segment(0)).n_rows),
      vocab_size_(config.vocab_size),
      largest_segment_(parameters.max_streamed_elems()) {
  const LlamaShape shape(config, options.batch_size, options.seq_len);
  const std::int64_t n_residuals = training_ ? n_layers_ + 1 : 2;
  for (std::int64_t i = 0; i < n_residuals; ++i) {
    residuals_.push_back(add("residuals", shape.N() * shape.C, dtype_, PhaseSet::all()));
  }
  add_layer_buffers(shape);
  add_head_buffers(shape);
  add_step_buffers(shape);
  step_.scratch = plan_.add("scratch of ops", measure_scratch(backend, shape), PhaseSet::all());
}

StepBuffers::Id StepBuffers::add(const char* purpose, std::int64_t elems, DType dtype, PhaseSet phases) {
  if (!training_) phases = phases.without(kRecompute | kBackward);
  return plan_.add(purpose, static_cast<std::size_t>(elems) * size_of(dtype), phases);
}

StepBuffers::KeptIds StepBuffers::add_kept(const LlamaShape& s, const char* purpose, bool whole_step) {
  const auto phases = [whole_step](PhaseSet set) { return whole_step ? PhaseSet::all() : set; };
  const PhaseSet attention = phases(kAttentionKept);
  const PhaseSet mid = phases(PhaseSet{kBackwardMlp} | kForward | kRecompute);
  const PhaseSet mlp = phases({kForwardMlp, kRecomputeMlp, kBackwardMlp});
  KeptIds ids{};
  ids.qkv = add(purpose, s.N() * s.qkv_width(), dtype_, attention);
  ids.attn = add(purpose, s.N() * s.H * s.D, dtype_, attention);
  ids.lse = add(purpose, s.N() * s.H, DType::kF32, attention);
  ids.x_mid = add(purpose, s.N() * s.C, dtype_, mid);
  ids.gate_up = add(purpose, s.N() * 2 * s.F, dtype_, mlp);
  ids.rstd_in = add(purpose, s.N(), DType::kF32, PhaseSet::all());
  ids.rstd_mid = add(purpose, s.N(), DType::kF32, PhaseSet::all());
  return ids;
}

void StepBuffers::add_layer_buffers(const LlamaShape& s) {
  constexpr const char* kPurpose = "activations of one layer";
  constexpr const char* kGradients = "activation gradients";
  if (training_ && recompute_ == Recompute::kNone) {
    for (std::int64_t l = 0; l < n_layers_; ++l) kept_.push_back(add_kept(s, "kept activations", true));
  } else {
    kept_.push_back(add_kept(s, kPurpose, false));
  }
  work_.norm = add(kPurpose, s.N() * s.C, dtype_, PhaseSet{kBackwardMlp, kBackwardInput} | kForward | kRecompute);
  work_.proj = add(kPurpose, s.N() * s.C, dtype_, {kForwardAttention, kRecomputeAttention});
  work_.act = add(kPurpose, s.N() * s.F, dtype_, {kForwardMlp, kBackwardMlp});
  work_.d_act = add(kGradients, s.N() * s.F, dtype_, {kBackwardMlp});
  work_.d_norm = add(kGradients, s.N() * s.C, dtype_, {kBackwardMlp, kBackwardInput});
  work_.d_attn = add(kGradients, s.N() * s.H * s.D, dtype_, {kBackwardAttention});
  work_.d_qkv = add(kGradients, s.N() * s.qkv_width(), dtype_, {kBackwardAttention, kBackwardInput});
  // Its last contents still travel home on another stream while the next step's forward pass runs: never shared.
  work_.d_stream = add(kGradients, training_ ? s.N() * s.C : 0, dtype_, PhaseSet::all());
}

void StepBuffers::add_head_buffers(const LlamaShape& s) {
  constexpr const char* kPurpose = "head activations";
  head_.hidden = add(kPurpose, s.N() * s.C, dtype_, {kHead});
  head_.rstd = add(kPurpose, s.N(), DType::kF32, {kHead});
  head_.logits = add("logits of one vocabulary chunk", s.N() * vocab_chunk_, dtype_, {kHead});
  head_.lse = add(kPurpose, s.N(), DType::kF32, {kHead});
  head_.target_logit = add(kPurpose, s.N(), DType::kF32, {kHead});
  head_.d_hidden = add(kPurpose, training_ ? s.N() * s.C : 0, DType::kF32, {kHead});
  head_.d_norm = dtype_ == DType::kF32 ? head_.d_hidden : add(kPurpose, training_ ? s.N() * s.C : 0, dtype_, {kHead});
}

void StepBuffers::add_step_buffers(const LlamaShape& s) {
  constexpr const char* kPurpose = "tokens, RoPE tables, losses";
  step_.ids = add(kPurpose, s.N(), DType::kI32, PhaseSet::all());
  step_.targets = add(kPurpose, s.N(), DType::kI32, PhaseSet::all());
  step_.order = add(kPurpose, s.N(), DType::kI32, PhaseSet::all());
  step_.distinct_ids = add(kPurpose, training_ ? s.N() : 0, DType::kI32, PhaseSet::all());
  step_.row_mask = add(kPurpose, training_ ? vocab_size_ : 0, DType::kI32, PhaseSet::all());
  step_.losses = add(kPurpose, Engine::kLossHistory + 1, DType::kF32, PhaseSet::all());
  step_.cos = add(kPurpose, s.T * s.D / 2, DType::kF32, PhaseSet::all());
  step_.sin = add(kPurpose, s.T * s.D / 2, DType::kF32, PhaseSet::all());
}

/// Runs the model's functions on views of no memory, asking what each op would need.
std::size_t StepBuffers::measure_scratch(Backend& backend, const LlamaShape& s) {
  std::size_t bytes = 0;
  const OpContext context{.backend = backend, .stream = nullptr, .scratch = {}, .measured_bytes = &bytes};
  alignas(Buffer::kAlignment) std::byte nowhere[Buffer::kAlignment];
  bind(nowhere);
  const LayerTensors weights = layer_tensors(s, dtype_, nowhere);
  const HeadChunk chunk{.weight = {nowhere, dtype_, {vocab_chunk_, s.C}}, .first_token = 0};
  const TensorView norm_weight(nowhere, dtype_, {s.C});
  layer_forward(context, s, rope(s), weights, residual(s, 0), residual(s, 1), kept(s, 0), work(s));
  head_norm(context, s, norm_weight, residual(s, 0), head(s));
  head_chunk_forward(context, chunk, targets(s), head(s));
  head_loss(context, targets(s), 1, loss(0), head(s));
  if (training_) {
    head_chunk_backward(context, chunk, targets(s), {}, chunk.weight, head(s));
    head_norm_backward(context, norm_weight, residual(s, 0), d_stream(s), norm_weight, head(s));
    layer_backward(context, s, rope(s), weights, residual(s, 0), kept(s, 0), work(s), d_stream(s), weights, false);
    const TensorView norm(nowhere, DType::kF32, {1});
    context.run(SumOfSquares{.x = {nowhere, dtype_, {largest_segment_}}, .skip = {}, .y = norm});
  }
  bind(nullptr);
  return bytes;
}

TensorView StepBuffers::view(Id id, DType dtype, std::initializer_list<std::int64_t> shape) const {
  return {static_cast<std::byte*>(arena_) + plan_.offset(id), dtype, shape};
}

TensorView StepBuffers::residual(const LlamaShape& s, std::int64_t layer) const {
  const auto index = static_cast<std::size_t>(layer) % residuals_.size();
  return view(residuals_[index], dtype_, {s.N(), s.C});
}

LayerKept StepBuffers::kept(const LlamaShape& s, std::int64_t layer) const {
  const KeptIds& ids = kept_[static_cast<std::size_t>(layer) % kept_.size()];
  return {.qkv = view(ids.qkv, dtype_, {s.N(), s.qkv_width()}),
          .attn = view(ids.attn, dtype_, {s.N(), s.H * s.D}),
          .lse = view(ids.lse, DType::kF32, {s.B, s.H, s.T}),
          .x_mid = view(ids.x_mid, dtype_, {s.N(), s.C}),
          .gate_up = view(ids.gate_up, dtype_, {s.N(), 2 * s.F}),
          .rstd_in = view(ids.rstd_in, DType::kF32, {s.N()}),
          .rstd_mid = view(ids.rstd_mid, DType::kF32, {s.N()})};
}

LayerWork StepBuffers::work(const LlamaShape& s) const {
  return {.norm = view(work_.norm, dtype_, {s.N(), s.C}),
          .proj = view(work_.proj, dtype_, {s.N(), s.C}),
          .act = view(work_.act, dtype_, {s.N(), s.F}),
          .d_act = view(work_.d_act, dtype_, {s.N(), s.F}),
          .d_norm = view(work_.d_norm, dtype_, {s.N(), s.C}),
          .d_attn = view(work_.d_attn, dtype_, {s.N(), s.H * s.D}),
          .d_qkv = view(work_.d_qkv, dtype_, {s.N(), s.qkv_width()})};
}

HeadWork StepBuffers::head(const LlamaShape& s) const {
  return {.hidden = view(head_.hidden, dtype_, {s.N(), s.C}),
          .rstd = view(head_.rstd, DType::kF32, {s.N()}),
          .logits = view(head_.logits, dtype_, {s.N(), vocab_chunk_}),
          .lse = view(head_.lse, DType::kF32, {s.N()}),
          .target_logit = view(head_.target_logit, DType::kF32, {s.N()}),
          .d_hidden = view(head_.d_hidden, DType::kF32, {s.N(), s.C}),
          .d_norm = view(head_.d_norm, dtype_, {s.N(), s.C})};
}

TensorView StepBuffers::d_stream(const LlamaShape& s) const { return view(work_.d_stream, dtype_, {s.N(), s.C}); }

RopeTable StepBuffers::rope(const LlamaShape& s) const {
  return {.cos = view(step_.cos, DType::kF32, {s.T, s.D / 2}), .sin = view(step_.sin, DType::kF32, {s.T, s.D / 2})};
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

}  // namespace ferry
