// SPDX-License-Identifier: Apache-2.0
// The whole model against PyTorch: loss, every gradient, and logits of tiny Llamas.
#include <cmath>

#include "catch.h"
#include "offload/tiny_model.h"

namespace ferry::test {
namespace {

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

TEST_CASE("f32 loss is within 1e-5 and each gradient within 1e-4 of PyTorch") {
  const auto backend = create_backend("cpu", {.threads = 2});
  const std::string name = GENERATE(from_range(model_fixtures()));
  const auto offload = GENERATE(Offload::kAll, Offload::kNone);
  const auto recompute = GENERATE(Recompute::kLean, Recompute::kNone);
  CAPTURE(name, offload == Offload::kAll, recompute == Recompute::kLean);
  const ModelFixture fixture(name);
  EngineOptions options = gradient_options(fixture, DType::kF32, offload);
  options.recompute = recompute;
  Engine engine(*backend, fixture.config, options);
  load_weights(engine, fixture);
  const double loss = engine.loss(engine.train_step(fixture.batch, 1e-3));
  const auto want = static_cast<double>(fixture.tensor("loss")[0]);
  CHECK(std::abs(loss - want) / want < 1e-5);
  for (const auto& [parameter, gradient] : values(engine, ParameterArray::kFirstMoment)) {
    CAPTURE(parameter);
    CHECK(relative_error(gradient, fixture.tensor("grad." + parameter)) < 1e-4);
  }
}

TEST_CASE("bf16 is about as close to the f64 truth as PyTorch's bf16") {
  const auto backend = create_backend("cpu", {.threads = 2});
  const std::string name = GENERATE(from_range(model_fixtures()));
  const auto offload = GENERATE(Offload::kAll, Offload::kNone);
  CAPTURE(name, offload == Offload::kAll);
  const ModelFixture fixture(name);
  Engine engine(*backend, fixture.config, gradient_options(fixture, DType::kBf16, offload));
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

TEST_CASE("evaluation and the logits of the last position agree with PyTorch") {
  const auto backend = create_backend("cpu", {.threads = 2});
  const std::string name = GENERATE(from_range(model_fixtures()));
  const bool training = GENERATE(true, false);
  CAPTURE(name, training);
  const ModelFixture fixture(name);
  EngineOptions options = gradient_options(fixture, DType::kF32, Offload::kAll);
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

}  // namespace ferry::test
