// SPDX-License-Identifier: Apache-2.0
// A NaN anywhere in a step: an eager step names it and stops, a step with clipping is skipped without a trace.
#include <limits>

#include "catch.h"
#include "offload/delayed_backend.h"
#include "offload/tiny_model.h"
#include "thrown.h"

namespace ferry::test {
namespace {

constexpr double kLr = 1e-2;
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

EngineOptions options_for(Offload offload, DType dtype, double grad_clip) {
  EngineOptions options;
  options.dtype = dtype;
  options.offload = offload;
  options.grad_clip = grad_clip;
  options.batch_size = 1;
  options.accumulate = 2;
  options.seq_len = 9;
  options.vocab_chunk = 32;
  options.piece_bytes = 4000;
  options.threads = 1;
  options.poison = false;  // its ops write NaN that nobody reads
  return options;
}

ModelConfig model(bool tied) {
  ModelConfig config = small_config(tied);
  config.n_layers = 2;
  return config;
}

/// An engine that has taken one step.
struct Trained {
  Trained(Backend& backend, bool tied, const EngineOptions& options)
      : config(model(tied)), engine(backend, config, options) {
    engine.initialize(3);
    train(0);
    engine.finish();
  }
  std::int64_t train(std::uint64_t step) {
    Batch batch = random_batch(config, 2, 9, step);
    batch.inputs[0] = 0;  // the first row of the table takes part
    return engine.train_step(batch, kLr);
  }
  std::vector<std::vector<std::byte>> bits() {
    return {snapshot(engine, ParameterArray::kWeight), snapshot(engine, ParameterArray::kWeightLow),
            snapshot(engine, ParameterArray::kFirstMoment), snapshot(engine, ParameterArray::kSecondMoment)};
  }
  std::size_t index_of(const std::string& name) const {
    const auto& infos = engine.parameters().parameters();
    std::size_t index = 0;
    while (infos.at(index).name != name) ++index;
    return index;
  }

  ModelConfig config;
  Engine engine;
};

/// What the step throws in which op `nan_op` writes NaN.
std::string failure_of(Backend& backend, bool tied, const EngineOptions& options, std::int64_t nan_op) {
  Trained trained(backend, tied, options);
  arm({.nan_op = nan_op});
  const std::string message = thrown([&] {
    trained.train(1);
    trained.engine.finish();
  });
  arm({});
  return message;
}

bool names(const std::string& message, const std::string& what) {
  return message.starts_with("device: " + what) &&
         message.find(" of step 2 is nan: training diverged") != std::string::npos;
}

/// Of a step that, with clipping, is skipped.
std::int64_t ops_of_a_step(Backend& backend, bool tied, const EngineOptions& options) {
  Trained trained(backend, tied, options);
  arm({.nan_op = options.grad_clip > 0 ? 0 : -1});
  trained.train(1);
  trained.engine.finish();
  const std::int64_t n_ops = n_ops_run();
  arm({});
  return n_ops;
}

}  // namespace

TEST_CASE("a NaN that any op of a step writes is named as the loss's or a gradient's, in that step") {
  const bool tied = GENERATE(true, false);
  const DType dtype = GENERATE(DType::kF32, DType::kBf16);
  const EngineOptions options = options_for(Offload::kAll, dtype, 0);
  const auto backend = create_delayed_backend(cpu::Launch::kInline, 1);
  const std::int64_t n_ops = ops_of_a_step(*backend, tied, options);
  REQUIRE(n_ops > 100);
  int n_losses = 0;
  for (std::int64_t op = 0; op < n_ops; ++op) {
    const std::string message = failure_of(*backend, tied, options, op);
    CAPTURE(tied, to_string(dtype), op, message);
    n_losses += names(message, "the loss") ? 1 : 0;
    CHECK((names(message, "the loss") || names(message, "the gradient of ")));
  }
  CHECK(n_losses > 20);
  CHECK(n_losses < n_ops / 2);
}

TEST_CASE("with clipping a step with a NaN anywhere is skipped, and training goes on as if it had never been") {
  const bool tied = GENERATE(true, false);
  const auto offload = GENERATE(Offload::kAll, Offload::kLayers, Offload::kNone);
  const EngineOptions options = options_for(offload, DType::kBf16, 1);
  const auto backend = create_delayed_backend(cpu::Launch::kInline, 1);
  const std::int64_t n_ops = ops_of_a_step(*backend, tied, options);
  Trained clean(*backend, tied, options);
  const auto before = clean.bits();
  const double loss = clean.engine.loss(clean.train(2));
  const auto after = clean.bits();
  for (std::int64_t op = 0; op < n_ops; op += 3) {
    CAPTURE(tied, static_cast<int>(offload), op);
    Trained trained(*backend, tied, options);
    arm({.nan_op = op});
    const StepStats stats = trained.engine.stats(trained.train(1));
    arm({});
    CHECK_FALSE(stats.applied);
    CHECK((trained.bits() == before));
    const std::int64_t next = trained.train(2);
    CHECK(trained.engine.loss(next) == loss);
    CHECK(trained.engine.stats(next).applied);
    CHECK((trained.bits() == after));
  }
}

TEST_CASE("a NaN in a weight is named, or skipped with clipping until the weight is whole again") {
  const auto offload = GENERATE(Offload::kAll, Offload::kLayers, Offload::kNone);
  const std::string name = GENERATE("model.embed_tokens.weight", "model.layers.1.mlp.up_proj.weight",
                                    "model.layers.0.input_layernorm.weight", "model.norm.weight", "lm_head.weight");
  CAPTURE(static_cast<int>(offload), name);
  const auto backend = create_backend("cpu", {.threads = 1});
  SECTION("eager") {
    Trained trained(*backend, false, options_for(offload, DType::kF32, 0));
    trained.engine.set_parameter(trained.index_of(name), 0, std::span(&kNaN, 1));
    const std::string message = thrown([&] {
      trained.train(1);
      trained.engine.finish();
    });
    CHECK(names(message, "the loss"));
  }
  SECTION("with clipping") {
    Trained trained(*backend, false, options_for(offload, DType::kF32, 1));
    const std::size_t index = trained.index_of(name);
    const auto before = trained.bits();
    const float whole = values(trained.engine, ParameterArray::kWeight).at(name).at(0);
    trained.engine.set_parameter(index, 0, std::span(&kNaN, 1));
    CHECK_FALSE(trained.engine.stats(trained.train(1)).applied);
    trained.engine.set_parameter(index, 0, std::span(&whole, 1));
    CHECK((trained.bits() == before));
    CHECK(trained.engine.stats(trained.train(1)).applied);
    CHECK((trained.bits() != before));
  }
}

}  // namespace ferry::test
