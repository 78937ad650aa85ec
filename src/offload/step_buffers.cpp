// SPDX-License-Identifier: Apache-2.0
// Sizes, lifetimes and views of a step's activations.
#include "offload/step_buffers.h"

#include <algorithm>

#include "core/error.h"
#include "offload/pass_ops.h"

namespace ferry {
namespace {

using enum Phase;

constexpr PhaseSet kForward{kForwardAttention, kForwardMlp};
constexpr PhaseSet kRecompute{kRecomputeAttention, kRecomputeMlp};
constexpr PhaseSet kBackward{kBackwardMlp, kBackwardAttention, kBackwardInput};
constexpr PhaseSet kAttentionKept = PhaseSet{kForwardAttention, kBackwardMlp, kBackwardAttention} | kRecompute;

const EngineOptions& checked_options(const ModelConfig& config, const EngineOptions& options) {
  FERRY_CHECK(options.accumulate >= 1, kConfig, "accumulate is {}: expected 1 or more", options.accumulate);
  FERRY_CHECK(options.keep_layers >= 0 && options.keep_layers <= config.n_layers, kConfig,
              "recompute = keep:{}: the model has {} layers", options.keep_layers, config.n_layers);
  FERRY_CHECK(!options.mlp_cut.cuts() || options.mlp_cut.size >= 1, kConfig,
              "mlp_chunk cuts parts of {}: expected 1 or more", options.mlp_cut.size);
  FERRY_CHECK(options.head != HeadMode::kTokens || options.head_tokens >= 1, kConfig,
              "head = tokens:{}: expected 1 or more", options.head_tokens);
  FERRY_CHECK(options.cache_tokens >= 0 && (options.cache_tokens == 0 || !options.training), kConfig,
              "a cache of {} tokens: expected 0 or more, and 0 when training", options.cache_tokens);
  return options;
}

}  // namespace

StepBuffers::StepBuffers(MemoryPlan& plan, const ScratchSizes& sizes, const ModelConfig& config,
                         const EngineOptions& options, const ParameterTable& parameters)
    : plan_(plan),
      options_(checked_options(config, options)),
      dtype_(options.dtype),
      n_layers_(config.n_layers),
      vocab_chunk_(parameters.segment(parameters.head_segment(0)).n_rows),
      vocab_size_(config.vocab_size),
      largest_segment_(parameters.max_streamed_elems()),
      n_positions_(std::max(options.seq_len, options.cache_tokens)),
      cache_width_(2 * config.n_kv_heads * config.head_dim) {
  const LlamaShape micro(config, options.batch_size, options.seq_len);
  const LlamaShape batch(config, options.max_sequences(), options.seq_len);
  std::int64_t n_residuals = options_.training ? n_layers_ + 1 : 2;
  if (options_.residuals == Residuals::kHost) n_residuals = std::min(n_residuals, kResidualRing);
  for (std::int64_t i = 0; i < n_residuals; ++i) {
    residuals_.push_back(add("residuals", batch.N() * batch.C, dtype_, PhaseSet::all()));
  }
  add_layer_buffers(micro);
  add_mlp_buffers(micro);
  add_gradient_sums(micro);
  add_head_buffers(batch);
  add_step_buffers(batch);
  step_.scratch = plan_.add("scratch of ops", measure_scratch(sizes, batch), PhaseSet::all());
}

StepBuffers::Id StepBuffers::add(const char* purpose, std::int64_t elems, DType dtype, PhaseSet phases) {
  const bool lasting = phases == PhaseSet::all();  // over steps, too: RoPE tables, losses
  if (!options_.training && !lasting) phases = phases.without(kRecompute | kBackward);
  return plan_.add(purpose, static_cast<std::size_t>(elems) * size_of(dtype), phases);
}

std::int64_t StepBuffers::n_kept_layers() const {
  if (!options_.training) return 0;
  return options_.recompute == Recompute::kNone ? n_layers_ : options_.keep_layers;
}

StepBuffers::KeptIds StepBuffers::add_kept(const LlamaShape& s, const char* purpose, bool whole_step) {
  const auto phases = [whole_step](PhaseSet set) { return whole_step ? PhaseSet::all() : set; };
  const PhaseSet attention = phases(kAttentionKept);
  const PhaseSet mid = phases(PhaseSet{kBackwardMlp} | kForward | kRecompute);
  const PhaseSet mlp = phases({kForwardMlp, kRecomputeMlp, kBackwardMlp});
  const std::int64_t rows = s.N();
  KeptIds ids{};
  ids.qkv = add(purpose, rows * s.qkv_width(), dtype_, attention);
  ids.attn = add(purpose, rows * s.H * s.D, dtype_, attention);
  ids.lse = add(purpose, rows * s.H, DType::kF32, attention);
  ids.x_mid = add(purpose, rows * s.C, dtype_, mid);
  ids.gate_up = add(purpose, options_.mlp_cut.cuts() ? 0 : rows * 2 * s.F, dtype_, mlp);
  ids.rstd_in = add(purpose, rows, DType::kF32, PhaseSet::all());
  ids.rstd_mid = add(purpose, rows, DType::kF32, PhaseSet::all());
  return ids;
}

void StepBuffers::add_layer_buffers(const LlamaShape& s) {
  constexpr const char* kPurpose = "activations of one layer";
  constexpr const char* kGradients = "activation gradients";
  for (std::int64_t i = 0; i < n_kept_layers() * options_.accumulate; ++i) {
    kept_.push_back(add_kept(s, "kept activations", true));
  }
  if (n_kept_layers() < n_layers_) shared_kept_ = add_kept(s, kPurpose, false);
  work_.norm = add(kPurpose, s.N() * s.C, dtype_, PhaseSet{kBackwardMlp, kBackwardInput} | kForward | kRecompute);
  PhaseSet proj{kForwardAttention, kRecomputeAttention};
  if (options_.recompute == Recompute::kFull) proj = proj | PhaseSet{kRecomputeMlp};  // the layer's output, unused
  work_.proj = add(kPurpose, s.N() * s.C, dtype_, proj);
  work_.d_norm = add(kGradients, s.N() * s.C, dtype_, {kBackwardMlp, kBackwardInput});
  work_.d_attn = add(kGradients, s.N() * s.H * s.D, dtype_, {kBackwardAttention});
  work_.d_qkv = add(kGradients, s.N() * s.qkv_width(), dtype_, {kBackwardAttention, kBackwardInput});
  // Its last contents still travel home on another stream while the next step's forward pass runs: never shared.
  work_.d_stream = add(kGradients, options_.training ? options_.accumulate * s.N() * s.C : 0, dtype_, PhaseSet::all());
}

/// What the MLP needs for one of its parts: all of it where it is not cut.
void StepBuffers::add_mlp_buffers(const LlamaShape& s) {
  constexpr const char* kPurpose = "activations of one layer";
  const MlpCut& cut = options_.mlp_cut;
  const std::int64_t rows = mlp_rows(s);
  const std::int64_t features = mlp_features(s);
  PhaseSet phases{kForwardMlp, kBackwardMlp};
  if (options_.recompute == Recompute::kFull) phases = phases | PhaseSet{kRecomputeMlp};
  if (cut.cuts()) {
    const Id gate_up = add(kPurpose, rows * 2 * features, dtype_, phases);
    shared_kept_.gate_up = gate_up;
    for (KeptIds& ids : kept_) ids.gate_up = gate_up;
  }
  work_.act = add(kPurpose, rows * features, dtype_, phases);
  const bool sums = cut.by == MlpCut::By::kFeatures && dtype_ != DType::kF32;
  work_.mlp_sum = add("f32 sums over parts of the MLP", sums ? s.N() * s.C : 0, DType::kF32, phases);
}

/// With several micro-batches the sums of a layer live from one to the next; with cuts by tokens alone, those of the
/// MLP's weights live in its backward pass.
void StepBuffers::add_gradient_sums(const LlamaShape& s) {
  const bool rounds = options_.training && dtype_ != DType::kF32;
  const bool several = rounds && options_.accumulate > 1;
  const bool mlp = several || (rounds && options_.mlp_cut.by == MlpCut::By::kTokens);
  const PhaseSet layer = several ? kRecompute | kBackward : PhaseSet{kBackwardMlp};
  const auto sum = [&](bool needed, std::int64_t elems, PhaseSet phases) {
    return add("f32 gradient sums", needed ? elems : 0, DType::kF32, phases);
  };
  sums_.input_norm = sum(several, s.C, layer);
  sums_.qkv = sum(several, s.qkv_width() * s.C, layer);
  sums_.out_proj = sum(several, s.C * s.H * s.D, layer);
  sums_.post_norm = sum(several, s.C, layer);
  sums_.gate_up = sum(mlp, 2 * s.F * s.C, layer);
  sums_.down = sum(mlp, s.C * s.F, layer);
  sums_.head = sum(several && head_mode() != HeadMode::kTokens, vocab_chunk_ * s.C, {kHead});
}

void StepBuffers::add_head_buffers(const LlamaShape& s) {
  constexpr const char* kPurpose = "head activations";
  head_.hidden = add(kPurpose, s.N() * s.C, dtype_, {kHead});
  head_.rstd = add(kPurpose, s.N(), DType::kF32, {kHead});
  head_.lse = add(kPurpose, s.N(), DType::kF32, {kHead});
  head_.target_logit = add(kPurpose, s.N(), DType::kF32, {kHead});
  const bool sum = options_.training && d_hidden_is_a_sum();
  head_.d_hidden = add(kPurpose, sum ? s.N() * s.C : 0, DType::kF32, {kHead});
  const std::int64_t table = head_mode() == HeadMode::kTokens ? s.V * s.C : 0;
  head_.table = add("head weights", table, dtype_, {kHead});
  head_.table_gradient = add("f32 gradient of the head", table, DType::kF32, {kHead});
  add_logits(s);
}

void StepBuffers::add_logits(const LlamaShape& s) {
  const std::int64_t rows = head_rows(s).front().count;
  if (head_mode() == HeadMode::kTokens) {
    logits_ = {add("logits of some rows", rows * s.V, dtype_, {kHead})};
  } else if (head_mode() == HeadMode::kChunks) {
    logits_ = {add("logits of one vocabulary chunk", rows * vocab_chunk_, dtype_, {kHead})};
  } else {
    for (std::int64_t token = 0; token < s.V; token += vocab_chunk_) {
      logits_.push_back(add("logits", s.N() * std::min(vocab_chunk_, s.V - token), dtype_, {kHead}));
    }
  }
}

void StepBuffers::add_step_buffers(const LlamaShape& s) {
  constexpr const char* kPurpose = "tokens, RoPE tables, losses";
  step_.ids = add(kPurpose, s.N(), DType::kI32, PhaseSet::all());
  step_.targets = add(kPurpose, s.N(), DType::kI32, PhaseSet::all());
  step_.order = add(kPurpose, s.N(), DType::kI32, PhaseSet::all());
  step_.distinct_ids = add(kPurpose, options_.training ? s.N() : 0, DType::kI32, PhaseSet::all());
  step_.row_mask = add(kPurpose, options_.training ? vocab_size_ : 0, DType::kI32, PhaseSet::all());
  step_.losses = add(kPurpose, Engine::kLossHistory + 1, DType::kF32, PhaseSet::all());
  step_.cos = add(kPurpose, n_positions_ * s.D / 2, DType::kF32, PhaseSet::all());
  step_.sin = add(kPurpose, n_positions_ * s.D / 2, DType::kF32, PhaseSet::all());
  step_.cache = add("key/value cache", n_layers_ * options_.cache_tokens * cache_width_, dtype_, PhaseSet::all());
}

/// Runs a pass on views of no memory, asking what each op would need.
std::size_t StepBuffers::measure_scratch(const ScratchSizes& sizes, const LlamaShape& s) {
  std::vector<Op> recorded;
  const OpContext context{.backend = nullptr, .stream = nullptr, .scratch = {}, .recorded = &recorded};
  alignas(Buffer::kAlignment) std::byte nowhere[Buffer::kAlignment];
  bind(nowhere);
  const TensorView segment(nowhere, dtype_, {0});
  const TensorView norm(nowhere, dtype_, {s.C});
  const TensorView rows(nowhere, dtype_, {vocab_chunk_ * s.C});
  const Segment chunk{.kind = Segment::Kind::kHead, .elems = vocab_chunk_ * s.C, .n_rows = vocab_chunk_};
  const PassOps ops(*this, context, s, options_.training ? PassOps::Kind::kTraining : PassOps::Kind::kForward);
  ops.forward_layer(0, segment);
  ops.head_norm(norm);
  ops.head_forward(chunk, rows);
  ops.head_loss(1, loss(0));
  if (options_.training) {
    ops.head_backward(chunk, rows, {.gradient = rows, .scale = 1});
    ops.head_norm_backward(norm, norm);
    ops.backward_layer(0, segment, segment);
    const TensorView sum(nowhere, DType::kF32, {1});
    context.run(SumOfSquares{.x = {nowhere, dtype_, {largest_segment_}}, .skip = {}, .y = sum});
  }
  if (options_.cache_tokens > 0) {
    LlamaShape part = s;
    part.B = 1;
    part.T = std::min(options_.seq_len, options_.cache_tokens);
    const PassOps first(*this, context, part, PassOps::Kind::kCached);
    const PassOps last(*this, context, part, PassOps::Kind::kCached, options_.cache_tokens - part.T);
    for (const PassOps* each : {&first, &last}) each->forward_layer(0, segment);
  }
  bind(nullptr);
  std::size_t most_bytes = 0;
  for (const Op& op : recorded) most_bytes = std::max(most_bytes, sizes.scratch_bytes(op));
  return most_bytes;
}

}  // namespace ferry
