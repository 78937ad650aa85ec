// SPDX-License-Identifier: Apache-2.0
// The engine when ops and copies are slow at random, and when one fails.
#include "catch.h"
#include "offload/delayed_backend.h"
#include "offload/tiny_model.h"
#include "thrown.h"

namespace ferry::test {
namespace {

EngineOptions options_for(Offload offload) {
  EngineOptions options;
  options.batch_size = 2;
  options.seq_len = 9;
  options.vocab_chunk = 16;
  options.piece_bytes = 700;
  options.threads = 2;
  options.offload = offload;
  return options;
}

std::vector<std::byte> train(Backend& backend, bool tied, Offload offload) {
  const ModelConfig config = small_config(tied);
  Engine engine(backend, config, options_for(offload));
  engine.initialize(5);
  for (std::uint64_t step = 0; step < 4; ++step) {
    engine.train_step(random_batch(config, 2, 9, step), 1e-2);
    if (step == 1) engine.evaluate(random_batch(config, 1, 9, 77));
  }
  return snapshot(engine, ParameterArray::kWeight);
}

/// What three steps throw when something fails in them.
std::string failure_of(Backend& backend, Offload offload, const Disturbance& disturbance) {
  const ModelConfig config = small_config(true);
  Engine engine(backend, config, options_for(offload));
  engine.initialize(5);
  arm(disturbance);
  const std::string message = thrown([&] {
    for (std::uint64_t step = 0; step < 3; ++step) engine.train_step(random_batch(config, 2, 9, step), 1e-2);
    engine.finish();
  });
  arm({});
  return message;
}

}  // namespace

TEST_CASE("random pauses of ops and copies do not change a bit") {
  const bool tied = GENERATE(true, false);
  const auto calm = create_backend("cpu", {.threads = 1});
  const auto want = train(*calm, tied, Offload::kNone);
  const auto backend = create_delayed_backend(cpu::Launch::kWorker, 2);
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    CAPTURE(tied, seed);
    arm({.seed = seed});
    CHECK(train(*backend, tied, Offload::kAll) == want);
  }
  arm({});
}

TEST_CASE("an op or a copy that fails stops the run with its message, wherever it happens, and nothing hangs") {
  const auto launch = GENERATE(cpu::Launch::kWorker, cpu::Launch::kInline);
  const auto offload = GENERATE(Offload::kAll, Offload::kNone);
  for (const std::int64_t index : {0, 3, 20, 47, 61, 75, 90, 140}) {
    const auto backend = create_delayed_backend(launch, 1);
    CHECK(failure_of(*backend, offload, {.failing_op = index}) ==
          "device: op " + std::to_string(index) + " was made to fail");
  }
  const int n_copies = offload == Offload::kAll ? 100 : 8;
  for (int index = 0; index < n_copies; index += n_copies / 8) {
    const auto backend = create_delayed_backend(launch, 1);
    CHECK(failure_of(*backend, offload, {.failing_copy = index}) ==
          "device: copy " + std::to_string(index) + " was made to fail");
  }
}

}  // namespace ferry::test
