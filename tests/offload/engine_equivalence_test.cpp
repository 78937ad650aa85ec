// SPDX-License-Identifier: Apache-2.0
// Offloaded, resident, any slots, threads and pieces: the same bits.
#include "catch.h"
#include "offload/tiny_model.h"

namespace ferry::test {
namespace {

constexpr std::int64_t kSteps = 6;

struct Result {
  std::vector<double> losses;
  double evaluated = 0;
  std::vector<std::byte> weight, low, m, v;
  bool operator==(const Result&) const = default;
};

EngineOptions base_options(DType dtype, OptimizerState state) {
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

/// Trains with evaluation and a smaller batch in between, so that every kind of pass follows every other.
Result train(const std::string& backend_name, int backend_threads, bool tied, const EngineOptions& options) {
  const auto backend = create_backend(backend_name, {.threads = backend_threads});
  const ModelConfig config = small_config(tied);
  Engine engine(*backend, config, options);
  engine.initialize(7);
  Result result;
  for (std::int64_t step = 0; step < kSteps; ++step) {
    const std::int64_t rows = step == 3 ? 1 : 3;
    const Batch batch = random_batch(config, rows, 17, static_cast<std::uint64_t>(step));
    const std::int64_t launched = engine.train_step(batch, 1e-2);
    if (step % 2 == 1) result.losses.push_back(engine.loss(launched));
    if (step == 2) result.evaluated = engine.evaluate(random_batch(config, 2, 11, 99));
  }
  result.losses.push_back(engine.loss(kSteps - 1));
  result.weight = snapshot(engine, ParameterArray::kWeight);
  result.low = snapshot(engine, ParameterArray::kWeightLow);
  result.m = snapshot(engine, ParameterArray::kFirstMoment);
  result.v = snapshot(engine, ParameterArray::kSecondMoment);
  return result;
}

}  // namespace

TEST_CASE("offloaded training gives the bits of resident training") {
  const auto dtype = GENERATE(DType::kF32, DType::kBf16);
  const auto state = GENERATE(OptimizerState::kF32, OptimizerState::kBf16);
  const bool tied = GENERATE(true, false);
  const auto recompute = GENERATE(Recompute::kLean, Recompute::kNone);
  CAPTURE(to_string(dtype), to_string(state), tied, recompute == Recompute::kLean);
  EngineOptions options = base_options(dtype, state);
  options.recompute = recompute;
  options.offload = Offload::kNone;
  const Result resident = train("cpu", 2, tied, options);
  CHECK(resident.low.empty() == !(dtype == DType::kBf16 && state == OptimizerState::kF32));
  options.offload = Offload::kAll;
  CHECK(train("cpu", 2, tied, options) == resident);
  CHECK(train("cpu:sync", 1, tied, options) == resident);
}

TEST_CASE("slots, threads, piece sizes and recomputation do not change a bit") {
  const bool tied = GENERATE(true, false);
  CAPTURE(tied);
  const EngineOptions options = base_options(DType::kBf16, OptimizerState::kF32);
  const Result reference = train("cpu", 1, tied, options);
  SECTION("threads") {
    const int threads = GENERATE(1, 2, 5);
    CAPTURE(threads);
    EngineOptions other = options;
    other.threads = threads;
    CHECK(train("cpu", threads, tied, other) == reference);
  }
  SECTION("slots") {
    const int slots = GENERATE(2, 3, 4, 9);
    CAPTURE(slots);
    EngineOptions other = options;
    other.weight_slots = slots;
    other.grad_slots = slots == 9 ? 2 : slots;
    CHECK(train("cpu", 2, tied, other) == reference);
  }
  SECTION("pieces") {
    const std::int64_t piece_bytes = GENERATE(1, 100, 1 << 20);
    CAPTURE(piece_bytes);
    EngineOptions other = options;
    other.piece_bytes = piece_bytes;
    CHECK(train("cpu", 2, tied, other) == reference);
  }
  SECTION("recomputation") {
    EngineOptions other = options;
    other.recompute = Recompute::kNone;
    CHECK(train("cpu", 2, tied, other) == reference);
  }
}

TEST_CASE("training lowers the loss of a batch that it sees again and again") {
  const auto backend = create_backend("cpu", {.threads = 2});
  const ModelConfig config = small_config(true);
  Engine engine(*backend, config, base_options(DType::kBf16, OptimizerState::kF32));
  engine.initialize(1);
  const Batch batch = random_batch(config, 3, 17, 0);
  const double first = engine.loss(engine.train_step(batch, 1e-2));
  double last = first;
  for (int step = 0; step < 40; ++step) last = engine.loss(engine.train_step(batch, 1e-2));
  CHECK(last < 0.5 * first);
}

TEST_CASE("vocabulary chunks change the result by rounding only") {
  EngineOptions options = base_options(DType::kF32, OptimizerState::kF32);
  const Result reference = train("cpu", 2, true, options);
  options.vocab_chunk = 61;
  const Result whole = train("cpu", 2, true, options);
  for (std::size_t i = 0; i < reference.losses.size(); ++i) {
    CHECK(std::abs(whole.losses[i] - reference.losses[i]) < 1e-4 * reference.losses[i]);
  }
}

}  // namespace ferry::test
