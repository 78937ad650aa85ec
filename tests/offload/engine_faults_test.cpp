// SPDX-License-Identifier: Apache-2.0
// The engine when ops are slow at random, and when one fails.
#include <atomic>
#include <chrono>
#include <thread>

#include "backend/cpu/cpu_backend.h"
#include "catch.h"
#include "core/rng.h"
#include "offload/tiny_model.h"
#include "thrown.h"

namespace ferry::test {
namespace {

std::atomic<std::int64_t> ops_run{0};
std::atomic<std::int64_t> failing_op{-1};
std::atomic<std::uint64_t> delay_seed{0};

/// The real ops with random pauses, or with one that fails.
void run_disturbed(const Op& op, Scratch scratch, ThreadPool& pool) {
  const std::int64_t index = ops_run++;
  FERRY_CHECK(index != failing_op, kDevice, "op {} was made to fail", index);
  if (delay_seed != 0) {
    const auto pause = CounterRng(delay_seed, "pause").bits(static_cast<std::uint64_t>(index)) % 400;
    std::this_thread::sleep_for(std::chrono::microseconds(pause < 300 ? 0 : pause));
  }
  cpu::op_table(simd_level()).run(op, scratch, pool);
}

std::size_t scratch_of(const Op& op) { return cpu::op_table(simd_level()).scratch_bytes(op); }

constexpr cpu::OpTable kDisturbed{SimdLevel::kScalar, run_disturbed, scratch_of};

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

std::vector<std::byte> train(Backend& backend, Offload offload, int steps) {
  const ModelConfig config = small_config(true);
  Engine engine(backend, config, options_for(offload));
  engine.initialize(5);
  for (int step = 0; step < steps; ++step) {
    engine.train_step(random_batch(config, 2, 9, static_cast<std::uint64_t>(step)), 1e-2);
  }
  return snapshot(engine, ParameterArray::kWeight);
}

}  // namespace

TEST_CASE("random pauses of ops do not change a bit") {
  const auto calm = create_backend("cpu", {.threads = 1});
  const auto want = train(*calm, Offload::kNone, 4);
  const auto backend = cpu::create_cpu_backend(kDisturbed, cpu::Launch::kWorker, {.threads = 2});
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    delay_seed = seed;
    CHECK(train(*backend, Offload::kAll, 4) == want);
  }
  delay_seed = 0;
}

TEST_CASE("an op that fails stops the run with its message, wherever it happens, and nothing hangs") {
  const auto launch = GENERATE(cpu::Launch::kWorker, cpu::Launch::kInline);
  const auto offload = GENERATE(Offload::kAll, Offload::kNone);
  for (const std::int64_t index : {0, 3, 20, 47, 61, 75, 90, 140}) {
    const auto backend = cpu::create_cpu_backend(kDisturbed, launch, {.threads = 1});
    // Setting up the resident engine zeroes its arrays: count from the first step.
    const ModelConfig config = small_config(true);
    Engine engine(*backend, config, options_for(offload));
    engine.initialize(5);
    ops_run = 0;
    failing_op = index;
    const std::string message = thrown([&] {
      for (std::uint64_t step = 0; step < 3; ++step) engine.train_step(random_batch(config, 2, 9, step), 1e-2);
      engine.finish();
    });
    CHECK(message == "device: op " + std::to_string(index) + " was made to fail");
    failing_op = -1;
  }
}

}  // namespace ferry::test
