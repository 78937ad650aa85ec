// SPDX-License-Identifier: Apache-2.0
// Whole training steps on two CPU backends that compare every op.
#include "offload/check_training.h"

#include "backend/check_backend.h"
#include "backend/cpu/cpu_backend.h"
#include "thrown.h"

namespace ferry::test {
namespace {

/// The real ops, but for a rotation by another angle.
void run_without_inverse(const Op& op, Scratch scratch, ThreadPool& pool) {
  Op wrong = op;
  if (auto* rope = std::get_if<Rope>(&wrong)) rope->inverse = false;
  cpu::op_table(simd_level()).run(wrong, scratch, pool);
}

constexpr cpu::OpTable kWithoutInverse{SimdLevel::kScalar, run_without_inverse,
                                       [](const Op& op) { return cpu::op_table(simd_level()).scratch_bytes(op); }};

}  // namespace

TEST_CASE("check:cpu,cpu agrees for 3 steps of a tiny model") {
  check_training("check:cpu,cpu", small_config(GENERATE(true, false)), GENERATE(DType::kF32, DType::kBf16), 3);
}

TEST_CASE("a check gives the weights of its first backend") {
  const ModelConfig config = small_config(true);
  EngineOptions options;
  options.batch_size = 2;
  options.seq_len = 9;
  options.vocab_chunk = 16;
  options.threads = 1;
  const auto train = [&](Backend& backend) {
    Engine engine(backend, config, options);
    engine.initialize(5);
    for (std::uint64_t step = 0; step < 3; ++step) engine.train_step(random_batch(config, 2, 9, step), 1e-2);
    return snapshot(engine, ParameterArray::kWeight);
  };
  CHECK(train(*create_backend("check:cpu,cpu", {.threads = 1})) == train(*create_backend("cpu", {.threads = 1})));
}

TEST_CASE("a wrong op ends training with its name, and nothing hangs") {
  const auto wrong = [] { return cpu::create_cpu_backend(kWithoutInverse, cpu::Launch::kWorker, {.threads = 1}); };
  const auto backend = create_check_backend({"cpu", create_backend("cpu", {.threads = 1})}, {"wrong", wrong()});
  const ModelConfig config = small_config(true);
  EngineOptions options;
  options.batch_size = 2;
  options.seq_len = 9;
  options.offload = GENERATE(Offload::kAll, Offload::kNone);
  Engine engine(*backend, config, options);
  engine.initialize(5);
  const std::string message = thrown([&] {
    engine.train_step(random_batch(config, 2, 9, 0), 1e-2);
    engine.finish();
  });
  CHECK(message.find("device: check:cpu,wrong: op ") == 0);
  CHECK(message.find(", rope: x bf16 (2, 9, ") != std::string::npos);
}

}  // namespace ferry::test
