// SPDX-License-Identifier: Apache-2.0
// The whole model against PyTorch, and placements of the engine against each other.
#include "offload/engine_checks.h"

#include <cmath>

#include "catch.h"

namespace ferry::test {
namespace {

constexpr std::int64_t kSteps = 6;

/// Options under which the first moment after one step is the gradient itself: beta1 = 0.
EngineOptions gradient_options(const ModelFixture& fixture, DType dtype, Offload offload) {
  EngineOptions options;
  options.dtype = dtype;
  options.batch_size = fixture.batch.batch_size;
  options.seq_len = fixture.batch.seq_len;
  options.adamw.beta1 = 0;
  options.offload = offload;
  options.vocab_chunk = 20;
  options.piece_bytes = 1500;
  options.threads = 2;
  return options;
}

double rms_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
  return std::sqrt(sum / static_cast<double>(a.size()));
}

}  // namespace

EngineOptions Variant::of(EngineOptions options) const {
  apply(options);
  return options;
}

std::vector<Variant> variants() {
  using By = MlpCut::By;
  const auto accumulate = [](EngineOptions& o) {  // of three sequences two and one
    o.accumulate = 2;
    o.batch_size = (o.batch_size + 1) / 2;
  };
  const auto head_tokens = [](EngineOptions& o) {
    o.head = HeadMode::kTokens;
    o.head_tokens = 7;
  };
  return {{"default", [](EngineOptions&) {}},
          {"recompute full", [](EngineOptions& o) { o.recompute = Recompute::kFull; }},
          {"recompute none", [](EngineOptions& o) { o.recompute = Recompute::kNone; }},
          {"recompute keep:1", [](EngineOptions& o) { o.keep_layers = 1; }},
          {"accumulate", accumulate},
          {"mlp tokens:5",
           [](EngineOptions& o) {
             o.mlp_cut = {By::kTokens, 5};
           }},
          {"mlp features:5",
           [](EngineOptions& o) {
             o.mlp_cut = {By::kFeatures, 5};
           }},
          {"head logits", [](EngineOptions& o) { o.head = HeadMode::kLogits; }},
          {"residuals host", [](EngineOptions& o) { o.residuals = Residuals::kHost; }},
          {"poison", [](EngineOptions& o) { o.poison = true; }},
          {"head tokens:7", head_tokens},
          {"accumulate, mlp tokens:4, head tokens:7, keep:1",
           [=](EngineOptions& o) {
             accumulate(o);
             head_tokens(o);
             o.mlp_cut = {By::kTokens, 4};
             o.keep_layers = 1;
             o.residuals = Residuals::kHost;
             o.poison = true;
           }},
          {"accumulate, mlp features:8, head logits, recompute full",
           [=](EngineOptions& o) {
             accumulate(o);
             o.mlp_cut = {By::kFeatures, 8};
             o.head = HeadMode::kLogits;
             o.recompute = Recompute::kFull;
           }},
          {"accumulate, mlp tokens:100, recompute none", [=](EngineOptions& o) {
             accumulate(o);
             o.mlp_cut = {By::kTokens, 100};
             o.recompute = Recompute::kNone;
           }}};
}

EngineOptions several_pieces(DType dtype, OptimizerState state) {
  EngineOptions options;
  options.dtype = dtype;
  options.optimizer_state = state;
  options.batch_size = 3;
  options.seq_len = 17;
  options.adamw.weight_decay = 0.1;
  options.vocab_chunk = 16;
  options.piece_bytes = 900;
  options.threads = 2;
  return options;
}

TrainedBits train(const std::string& backend_name, int backend_threads, bool tied, const EngineOptions& options) {
  const auto backend = create_backend(backend_name, {.threads = backend_threads});
  const ModelConfig config = small_config(tied);
  Engine engine(*backend, config, options);
  engine.initialize(7);
  TrainedBits result;
  for (std::int64_t step = 0; step < kSteps; ++step) {
    const std::int64_t rows = step == 3 ? 1 : 3;
    const Batch batch = random_batch(config, rows, 17, static_cast<std::uint64_t>(step));
    const std::int64_t launched = engine.train_step(batch, 1e-2);
    if (step % 2 == 1) {
      result.losses.push_back(engine.loss(launched));
      result.norms.push_back(engine.stats(launched).grad_norm);
    }
    if (step == 2) result.evaluated = engine.evaluate(random_batch(config, 2, 11, 99));
  }
  result.losses.push_back(engine.loss(kSteps - 1));
  result.weight = snapshot(engine, ParameterArray::kWeight);
  result.low = snapshot(engine, ParameterArray::kWeightLow);
  result.m = snapshot(engine, ParameterArray::kFirstMoment);
  result.v = snapshot(engine, ParameterArray::kSecondMoment);
  return result;
}

void check_f32_against_pytorch(const std::string& backend_name) {
  const auto backend = create_backend(backend_name, {.threads = 2});
  const std::string name = GENERATE(from_range(model_fixtures()));
  const auto offload = GENERATE(Offload::kAll, Offload::kNone);
  const Variant variant = GENERATE(from_range(variants()));
  CAPTURE(name, offload == Offload::kAll, variant.name);
  const ModelFixture fixture(name);
  Engine engine(*backend, fixture.config, variant.of(gradient_options(fixture, DType::kF32, offload)));
  load_weights(engine, fixture);
  const double loss = engine.loss(engine.train_step(fixture.batch, 1e-3));
  const auto want = static_cast<double>(fixture.tensor("loss")[0]);
  CHECK(std::abs(loss - want) / want < 1e-5);
  for (const auto& [parameter, gradient] : values(engine, ParameterArray::kFirstMoment)) {
    CAPTURE(parameter);
    CHECK(relative_error(gradient, fixture.tensor("grad." + parameter)) < 1e-4);
  }
}

void check_bf16_against_pytorch(const std::string& backend_name) {
  const auto backend = create_backend(backend_name, {.threads = 2});
  const std::string name = GENERATE(from_range(model_fixtures()));
  const auto offload = GENERATE(Offload::kAll, Offload::kNone);
  const Variant variant = GENERATE(from_range(variants()));
  CAPTURE(name, offload == Offload::kAll, variant.name);
  const ModelFixture fixture(name);
  Engine engine(*backend, fixture.config, variant.of(gradient_options(fixture, DType::kBf16, offload)));
  load_weights(engine, fixture);
  const double loss = engine.loss(engine.train_step(fixture.batch, 1e-3));
  const double truth = static_cast<double>(fixture.tensor("loss")[0]);
  CHECK(std::abs(loss - truth) < 2 * rms_difference(fixture.tensor("bf16.token_loss"), fixture.tensor("token_loss")));
  for (const auto& [parameter, gradient] : values(engine, ParameterArray::kFirstMoment)) {
    CAPTURE(parameter);
    const auto& want = fixture.tensor("grad." + parameter);
    const double theirs = relative_error(fixture.tensor("bf16.grad." + parameter), want);
    CHECK(relative_error(gradient, want) < 1.5 * theirs);
  }
}

void check_evaluation_against_pytorch(const std::string& backend_name) {
  const auto backend = create_backend(backend_name, {.threads = 2});
  const std::string name = GENERATE(from_range(model_fixtures()));
  const bool training = GENERATE(true, false);
  const Variant variant = GENERATE(from_range(variants()));
  CAPTURE(name, training, variant.name);
  const ModelFixture fixture(name);
  EngineOptions options = variant.of(gradient_options(fixture, DType::kF32, Offload::kAll));
  options.training = training;
  Engine engine(*backend, fixture.config, options);
  load_weights(engine, fixture);
  const double want =
      static_cast<double>(fixture.tensor("loss")[0]) * static_cast<double>(fixture.batch.n_valid_targets);
  CHECK(std::abs(engine.evaluate(fixture.batch) - want) / want < 1e-5);
  const auto& logits = fixture.tensor("logits");
  const auto vocab = static_cast<std::size_t>(fixture.config.vocab_size);
  for (std::int64_t b = 0; b < fixture.batch.batch_size; ++b) {
    const auto row = std::span(fixture.batch.inputs)
                         .subspan(static_cast<std::size_t>(b * fixture.batch.seq_len),
                                  static_cast<std::size_t>(fixture.batch.seq_len));
    const auto first = logits.begin() + b * static_cast<std::int64_t>(vocab);
    const std::vector<float> expected(first, first + static_cast<std::int64_t>(vocab));
    CHECK(relative_error(engine.next_logits(row), expected) < 1e-5);
  }
}

void check_offloaded_equals_resident(const std::string& backend_name) {
  const auto dtype = GENERATE(DType::kF32, DType::kBf16);
  const auto state = GENERATE(OptimizerState::kF32, OptimizerState::kMixed, OptimizerState::kBf16);
  const bool tied = GENERATE(true, false);
  const Variant variant = GENERATE(from_range(variants()));
  CAPTURE(to_string(dtype), to_string(state), tied, variant.name);
  EngineOptions options = variant.of(several_pieces(dtype, state));
  options.offload = Offload::kNone;
  const TrainedBits resident = train(backend_name, 2, tied, options);
  CHECK(resident.low.empty() == !has_weight_low(dtype, state));
  options.offload = Offload::kAll;
  CHECK(train(backend_name, 2, tied, options) == resident);
}

void check_layout_changes_no_bit(const std::string& backend_name) {
  const bool tied = GENERATE(true, false);
  CAPTURE(tied);
  const EngineOptions options = several_pieces(DType::kBf16, OptimizerState::kMixed);
  const TrainedBits reference = train(backend_name, 1, tied, options);
  SECTION("threads") {
    const int threads = GENERATE(1, 2, 5);
    CAPTURE(threads);
    EngineOptions other = options;
    other.threads = threads;
    CHECK(train(backend_name, threads, tied, other) == reference);
  }
  SECTION("slots") {
    const int slots = GENERATE(2, 3, 4, 9);
    CAPTURE(slots);
    EngineOptions other = options;
    other.weight_slots = slots;
    other.grad_slots = slots == 9 ? 2 : slots;
    CHECK(train(backend_name, 2, tied, other) == reference);
  }
  SECTION("all logits, of one micro-batch and of several") {
    EngineOptions other = options;
    other.batch_size = GENERATE(1, 2, 3);
    CAPTURE(other.batch_size);
    other.accumulate = (options.batch_size + other.batch_size - 1) / other.batch_size;
    const TrainedBits chunks = train(backend_name, 2, tied, other);
    other.head = HeadMode::kLogits;
    CHECK(train(backend_name, 2, tied, other) == chunks);
  }
  SECTION("pieces") {
    const std::int64_t piece_bytes = GENERATE(1, 100, 1 << 20);
    CAPTURE(piece_bytes);
    EngineOptions other = options;
    other.piece_bytes = piece_bytes;
    CHECK(train(backend_name, 2, tied, other) == reference);
  }
}

void check_placement_changes_no_bit(const std::string& backend_name) {
  const bool tied = GENERATE(true, false);
  const double grad_clip = GENERATE(0.0, 0.3, 1e6);
  const auto freeze =
      GENERATE(std::vector<std::string>{}, std::vector<std::string>{"model.embed_tokens.*", "model.layers.2.*"},
               std::vector<std::string>{"*norm*", "model.layers.0.mlp.*", "model.layers.1.*", "*q_proj*"});
  CAPTURE(tied, grad_clip, freeze);
  EngineOptions options = several_pieces(DType::kBf16, OptimizerState::kMixed);
  options.grad_clip = grad_clip;
  options.freeze = freeze;
  options.offload = Offload::kNone;
  const TrainedBits reference = train(backend_name, 2, tied, options);
  options.offload = Offload::kAll;
  CHECK(train(backend_name, 2, tied, options) == reference);
  options.resident_state_layers = 1;
  options.resident_layers = 1;
  CHECK(train(backend_name, 2, tied, options) == reference);
  options.resident_state_layers = 0;
  options.resident_layers = 9;
  CHECK(train(backend_name, 2, tied, options) == reference);
  options.offload = Offload::kLayers;
  options.resident_layers = 0;
  CHECK(train(backend_name, 2, tied, options) == reference);
}

void check_norm_against_pytorch(const std::string& backend_name) {
  const auto backend = create_backend(backend_name, {.threads = 2});
  const std::string name = GENERATE(from_range(model_fixtures()));
  const double grad_clip = GENERATE(0.0, 0.01, 1e3);
  CAPTURE(name, grad_clip);
  const ModelFixture fixture(name);
  EngineOptions options = gradient_options(fixture, DType::kF32, Offload::kAll);
  options.grad_clip = grad_clip;
  Engine engine(*backend, fixture.config, options);
  load_weights(engine, fixture);
  double squares = 0;
  for (const ParameterInfo& info : engine.parameters().parameters()) {
    for (const float g : fixture.tensor("grad." + info.name)) squares += std::pow(static_cast<double>(g), 2);
  }
  const double norm = std::sqrt(squares);
  const StepStats stats = engine.stats(engine.train_step(fixture.batch, 1e-3));
  const double coefficient = grad_clip > 0 ? std::min(1.0, grad_clip / (norm + 1e-6)) : 1;
  CHECK(std::abs(stats.grad_norm - norm) < 1e-5 * norm);
  CHECK(std::abs(stats.coefficient - coefficient) < 1e-5 * coefficient);
  for (auto [parameter, gradient] : values(engine, ParameterArray::kFirstMoment)) {
    CAPTURE(parameter);
    for (float& g : gradient) g /= static_cast<float>(coefficient);
    CHECK(relative_error(gradient, fixture.tensor("grad." + parameter)) < 1e-4);
  }
}

void check_recomputation_changes_no_bit(const std::string& backend_name) {
  const Variant variant = GENERATE(from_range(variants()));
  CAPTURE(variant.name);
  EngineOptions options = variant.of(several_pieces(DType::kBf16, OptimizerState::kF32));
  options.recompute = Recompute::kLean;
  options.keep_layers = 0;
  const TrainedBits reference = train(backend_name, 2, false, options);
  const auto with = [&](Recompute recompute, std::int64_t keep_layers) {
    options.recompute = recompute;
    options.keep_layers = keep_layers;
    return train(backend_name, 2, false, options);
  };
  CHECK(with(Recompute::kFull, 0) == reference);
  CHECK(with(Recompute::kNone, 0) == reference);
  CHECK(with(Recompute::kLean, 2) == reference);
  CHECK(with(Recompute::kFull, 1) == reference);
}

void check_accumulation_changes_rounding_only(const std::string& backend_name) {
  const auto backend = create_backend(backend_name, {.threads = 2});
  const ModelConfig config = small_config(GENERATE(true, false));
  const Variant variant = GENERATE(from_range(variants()));
  const std::int64_t batch_size = GENERATE(1, 2, 4);  // 5 x 1; 2 + 2 + 1; 4 + 1
  CAPTURE(config.tie_word_embeddings, variant.name, batch_size);
  const Batch batch = random_batch(config, 5, 17, 3);
  const auto gradients = [&](DType dtype, std::int64_t size, std::int64_t accumulate) {
    EngineOptions options = variant.of(several_pieces(dtype, OptimizerState::kF32));
    options.adamw.beta1 = 0;  // the first moment is the gradient
    options.batch_size = size;
    options.accumulate = accumulate;
    Engine engine(*backend, config, options);
    engine.initialize(7);
    const double loss = engine.loss(engine.train_step(batch, 1e-3));
    return std::pair(loss, values(engine, ParameterArray::kFirstMoment));
  };
  const auto [loss, truth] = gradients(DType::kF32, 5, 1);
  const std::int64_t accumulate = (5 + batch_size - 1) / batch_size;
  const auto [cut_loss, cut] = gradients(DType::kF32, batch_size, accumulate);
  CHECK(std::abs(cut_loss - loss) < 1e-6 * loss);
  const auto whole_bf16 = gradients(DType::kBf16, 5, 1).second;
  const auto cut_bf16 = gradients(DType::kBf16, batch_size, accumulate).second;
  for (const auto& [name, gradient] : truth) {
    CAPTURE(name);
    CHECK(relative_error(cut.at(name), gradient) < 1e-5);
    CHECK(relative_error(cut_bf16.at(name), gradient) < 1.1 * relative_error(whole_bf16.at(name), gradient));
  }
}

}  // namespace ferry::test
