// SPDX-License-Identifier: Apache-2.0
// Every draw takes the next number of one stream.
#include "offload/random_config.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <initializer_list>
#include <iterator>

#include "core/error.h"
#include "core/int_math.h"
#include "core/rng.h"

namespace ferry::test {
namespace {

constexpr int kSteps = 3;

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : rng_(seed, "random configuration of the engine") {}

  /// Of [first, last].
  std::int64_t range(std::int64_t first, std::int64_t last) {
    return first + static_cast<std::int64_t>(rng_.bits(next_++)) % (last - first + 1);
  }
  bool one_in(std::int64_t n) { return range(1, n) == 1; }
  template <class T>
  T of(std::initializer_list<T> values) {
    return std::data(values)[range(0, static_cast<std::int64_t>(values.size()) - 1)];
  }

 private:
  CounterRng rng_;
  std::uint64_t next_ = 0;
};

ModelConfig random_model(Draw& draw) {
  ModelConfig model;
  model.n_layers = draw.range(1, 9);
  model.n_kv_heads = draw.range(1, 3);
  model.n_heads = model.n_kv_heads * draw.range(1, 3);
  model.head_dim = 2 * draw.range(1, 4);
  model.hidden_size = draw.range(5, 33);
  model.intermediate_size = draw.range(3, 45);
  model.vocab_size = draw.range(7, 70);
  model.tie_word_embeddings = draw.one_in(2);
  model.max_position_embeddings = 16;
  model.initializer_range = 0.2;
  return model;
}

void draw_shape(Draw& draw, EngineOptions& options) {
  options.dtype = draw.of({DType::kF32, DType::kBf16});
  options.optimizer_state = draw.of({OptimizerState::kF32, OptimizerState::kMixed, OptimizerState::kBf16});
  options.batch_size = draw.range(1, 3);
  options.accumulate = draw.range(1, 3);
  options.seq_len = draw.range(1, 9);
}

void draw_cuts(Draw& draw, const ModelConfig& model, EngineOptions& options) {
  const std::int64_t n_tokens = options.batch_size * options.seq_len;
  options.recompute = draw.of({Recompute::kFull, Recompute::kLean, Recompute::kNone});
  options.keep_layers = draw.one_in(2) ? draw.range(0, model.n_layers) : 0;
  options.mlp_cut.by = draw.of({MlpCut::By::kNone, MlpCut::By::kTokens, MlpCut::By::kFeatures});
  if (options.mlp_cut.by == MlpCut::By::kTokens) options.mlp_cut.size = draw.range(ceil_div(n_tokens, 4), n_tokens + 1);
  if (options.mlp_cut.by == MlpCut::By::kFeatures) {
    options.mlp_cut.size = draw.range(ceil_div(model.intermediate_size, 4), model.intermediate_size + 1);
  }
  options.head = draw.of({HeadMode::kChunks, HeadMode::kLogits, HeadMode::kTokens});
  if (options.head == HeadMode::kTokens) options.head_tokens = draw.range(ceil_div(n_tokens, 3), n_tokens + 2);
  options.vocab_chunk = draw.one_in(5) ? 0 : draw.range(ceil_div(model.vocab_size, 5), model.vocab_size);
}

void draw_placement(Draw& draw, const ModelConfig& model, EngineOptions& options) {
  using enum Offload;
  options.offload = draw.of({kAll, kAll, kAll, kAll, kAll, kLayers, kLayers, kLayers, kNone});
  options.residuals = draw.of({Residuals::kDevice, Residuals::kHost});
  if (draw.one_in(3)) options.resident_layers = draw.range(1, model.n_layers);
  if (draw.one_in(3)) options.resident_state_layers = draw.range(1, model.n_layers);
  options.weight_slots = static_cast<int>(draw.range(2, 4));
  options.grad_slots = static_cast<int>(draw.range(2, 4));
  const std::int64_t layer_elems =
      model.hidden_size * (2 * (model.n_heads + model.n_kv_heads) * model.head_dim + 3 * model.intermediate_size);
  options.piece_bytes =
      draw.one_in(4) ? 1 << 20 : layer_elems * static_cast<std::int64_t>(size_of(options.dtype)) / draw.range(1, 4);
  options.threads = static_cast<int>(draw.range(1, 3));
  options.poison = draw.one_in(2);
}

void draw_training(Draw& draw, const ModelConfig& model, EngineOptions& options) {
  options.adamw.weight_decay = draw.of({0.0, 0.1});
  options.adamw.rounding = draw.of({Rounding::kStochastic, Rounding::kNearest});
  options.adamw.seed = static_cast<std::uint64_t>(draw.range(0, 3));
  options.decay_embeddings = draw.one_in(2);
  options.grad_clip = draw.of({0.0, 0.0, 0.02, 1e6});  // off, triggered, not triggered
  options.check_finite = !draw.one_in(4);
  if (draw.one_in(2)) return;
  const std::string layer = fmt::format("model.layers.{}.", draw.range(0, model.n_layers - 1));
  const std::string head = model.tie_word_embeddings ? "model.norm.weight" : "lm_head.weight";
  for (const std::string& pattern :
       {std::string("model.embed_tokens.weight"), layer + "*", layer + "mlp.*", std::string("*norm*"),
        std::string("*k_proj*"), std::string("model.layers.*"), head}) {
    if (draw.one_in(4)) options.freeze.push_back(pattern);
  }
}

std::vector<ScriptStep> random_script(Draw& draw, const EngineOptions& options) {
  std::vector<ScriptStep> script;
  for (int step = 0; step < kSteps; ++step) {
    ScriptStep next{.batch_size = options.max_sequences(), .seq_len = options.seq_len};
    if (step == 1) next.batch_size = draw.range(1, options.max_sequences());
    if (step == 2 && draw.one_in(2)) next.seq_len = draw.range(1, options.seq_len);
    next.read_loss = draw.one_in(3);
    next.read_stats = draw.one_in(3);
    next.evaluate = draw.one_in(3);
    if (draw.one_in(4)) next.logits_after = draw.range(1, options.seq_len);
    next.next = static_cast<NextBatch>(draw.range(0, 2));
    script.push_back(next);
  }
  return script;
}

std::string name_of(const EngineOptions& options) {
  constexpr std::array kOffloads{"all", "layers", "none"};
  constexpr std::array kRecomputes{"full", "lean", "none"};
  constexpr std::array kHeads{"chunks", "logits", "tokens"};
  constexpr std::array kCuts{"none", "tokens", "features"};
  const auto name = [](const auto& names, auto value) { return names.at(static_cast<std::size_t>(value)); };
  std::string text = fmt::format(
      "{} {} {}:{}, {} x {} x {}, offload {}, residuals {}, resident {} weights {} state, slots {} {}, pieces {}",
      to_string(options.dtype), to_string(options.optimizer_state), to_string(options.adamw.rounding),
      options.adamw.seed, options.accumulate, options.batch_size, options.seq_len, name(kOffloads, options.offload),
      options.residuals == Residuals::kHost ? "host" : "device", options.resident_layers, options.resident_state_layers,
      options.weight_slots, options.grad_slots, options.piece_bytes);
  text += fmt::format(
      ", recompute {} keep {}, mlp {}:{}, head {}:{} chunk {}, clip {}, finite {}, threads {}, decay {} {}, poison {}",
      name(kRecomputes, options.recompute), options.keep_layers, name(kCuts, options.mlp_cut.by), options.mlp_cut.size,
      name(kHeads, options.head), options.head_tokens, options.vocab_chunk, options.grad_clip, options.check_finite,
      options.threads, options.adamw.weight_decay, options.decay_embeddings, options.poison);
  for (const std::string& pattern : options.freeze) text += ", freeze " + pattern;
  return text;
}

std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

}  // namespace

RandomConfig random_config(std::uint64_t seed) {
  Draw draw(seed);
  RandomConfig config;
  config.seed = seed;
  config.model = random_model(draw);
  draw_shape(draw, config.options);
  draw_cuts(draw, config.model, config.options);
  draw_placement(draw, config.model, config.options);
  draw_training(draw, config.model, config.options);
  config.script = random_script(draw, config.options);
  return config;
}

std::string RandomConfig::describe() const {
  std::string text =
      fmt::format("seed {}: L {} H {} G {} D {} C {} F {} V {} {}, ", seed, model.n_layers, model.n_heads,
                  model.n_kv_heads, model.head_dim, model.hidden_size, model.intermediate_size, model.vocab_size,
                  model.tie_word_embeddings ? "tied" : "untied");
  text += name_of(options);
  for (const ScriptStep& step : script) {
    constexpr std::array kNext = {"", " next known", " next wrong"};
    text +=
        fmt::format("; {} x {}{}{}{}{}{}", step.batch_size, step.seq_len, kNext.at(static_cast<std::size_t>(step.next)),
                    step.read_loss ? " loss" : "", step.read_stats ? " stats" : "", step.evaluate ? " evaluate" : "",
                    step.logits_after > 0 ? fmt::format(" logits after {}", step.logits_after) : "");
  }
  return text;
}

EngineOptions RandomConfig::resident() const {
  EngineOptions plain = options;
  plain.offload = Offload::kNone;
  plain.residuals = Residuals::kDevice;
  plain.resident_layers = plain.resident_state_layers = 0;
  plain.weight_slots = plain.grad_slots = 2;
  plain.piece_bytes = 1 << 20;
  plain.recompute = Recompute::kNone;
  plain.threads = 1;
  plain.poison = false;
  return plain;
}

EngineOptions RandomConfig::plain_arithmetic() const {
  EngineOptions plain = resident();
  plain.batch_size = options.max_sequences();
  plain.accumulate = 1;
  plain.mlp_cut = {};
  plain.head = HeadMode::kChunks;
  plain.vocab_chunk = model.vocab_size;
  return plain;
}

SeedRange seeds_to_run(std::uint64_t count) {
  return {from_environment("FERRY_RANDOM_FIRST", 0), from_environment("FERRY_RANDOM_CONFIGS", count)};
}

}  // namespace ferry::test
