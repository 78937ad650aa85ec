// SPDX-License-Identifier: Apache-2.0
// What the compute stream waits for: each cause is found where it is planted.
#include "offload/step_waits.h"

#include <algorithm>
#include <chrono>
#include <string_view>
#include <thread>

#include "catch.h"
#include "offload/forwarding_backend.h"
#include "offload/tiny_model.h"

namespace ferry::test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kSteps = 5;

/// AdamW takes 5 ms longer for every update.
class SlowOptimizer final : public ForwardingBackend {
 public:
  SlowOptimizer() : ForwardingBackend(create_backend("cpu", {.threads = 1})) {}
  void host_access(Access how, const void* data, std::size_t size_bytes, const char* label) override {
    if (std::string_view(label) == "weights in AdamW") std::this_thread::sleep_for(std::chrono::milliseconds(5));
    inner().host_access(how, data, size_bytes, label);
  }
};

EngineOptions small_options() {
  EngineOptions options;
  options.dtype = DType::kF32;
  options.batch_size = 2;
  options.seq_len = 8;
  options.vocab_chunk = 16;
  options.threads = 1;
  return options;
}

double sum_of(const StepStats& stats) {
  return stats.wait_weights_ms + stats.wait_optimizer_ms + stats.wait_gradients_ms + stats.wait_residuals_ms +
         stats.wait_input_ms;
}

struct Measured {
  std::vector<StepStats> steps;
  std::vector<double> wall_ms;

  double median(double StepStats::*field) const {
    std::vector<double> values;
    for (const StepStats& stats : steps) values.push_back(stats.*field);
    std::ranges::sort(values);
    return values[values.size() / 2];
  }
};

/// Steps back to back; with `apart` each ends before the next begins.
Measured measure(Backend& backend, const EngineOptions& options, bool apart) {
  const ModelConfig config = small_config(true);
  Engine engine(backend, config, options);
  engine.initialize(1);
  Measured measured;
  for (std::int64_t i = 0; i < kSteps; ++i) {
    const auto begin = Clock::now();
    const std::int64_t step = engine.train_step(random_batch(config, 2, 8, static_cast<std::uint64_t>(i)), 1e-3);
    if (apart) engine.finish();
    measured.wall_ms.push_back(std::chrono::duration<double, std::milli>(Clock::now() - begin).count());
    measured.steps.push_back(engine.stats(step));
  }
  return measured;
}

Measured measure(const std::string& backend_name, bool apart = false, const EngineOptions& options = small_options()) {
  const auto backend = create_backend(backend_name, {.threads = 1});
  return measure(*backend, options, apart);
}

}  // namespace

TEST_CASE("slow copies show up as waits for weights and for places of gradients") {
  const Measured usual = measure("trace:cpu");
  const Measured slow = measure("trace:cpu,slow=copies");
  CHECK(slow.median(&StepStats::wait_weights_ms) > usual.median(&StepStats::wait_weights_ms));
  CHECK(slow.median(&StepStats::wait_gradients_ms) > usual.median(&StepStats::wait_gradients_ms));
}

TEST_CASE("a slow optimizer shows up as waits for the optimizer") {
  const Measured usual = measure("cpu");
  SlowOptimizer backend;
  const Measured slow = measure(backend, small_options(), false);
  CHECK(slow.median(&StepStats::wait_optimizer_ms) > usual.median(&StepStats::wait_optimizer_ms));
  CHECK(slow.median(&StepStats::wait_optimizer_ms) > slow.median(&StepStats::wait_weights_ms));
}

TEST_CASE("residuals that go through the host show up as waits for residuals") {
  EngineOptions options = small_options();
  options.residuals = Residuals::kHost;
  CHECK(measure("trace:cpu,slow=copies", false, options).median(&StepStats::wait_residuals_ms) > 0);
  CHECK(measure("trace:cpu,slow=copies").median(&StepStats::wait_residuals_ms) == 0);
}

TEST_CASE("waits of a step add up to no more than the step") {
  for (const char* name : {"cpu", "cpu:sync", "trace:cpu,slow=copies"}) {
    INFO(name);
    const Measured measured = measure(name, true);
    for (std::size_t i = 0; i < measured.steps.size(); ++i) {
      const StepStats& stats = measured.steps[i];
      CHECK(sum_of(stats) <= measured.wall_ms[i]);
      CHECK(sum_of(stats) - stats.wait_input_ms - stats.wait_optimizer_ms <= stats.compute_ms);
      CHECK(stats.wait_input_ms + stats.wait_optimizer_ms > 0);
    }
  }
}

TEST_CASE("what lives on the device is not waited for") {
  EngineOptions options = small_options();
  options.offload = Offload::kNone;
  const Measured measured = measure("trace:cpu,slow=copies", false, options);
  CHECK(measured.median(&StepStats::wait_weights_ms) == 0);
}

TEST_CASE("waits of other passes are not measured") {
  const auto backend = create_backend("cpu", {.threads = 1});
  const ModelConfig config = small_config(true);
  Engine engine(*backend, config, small_options());
  engine.initialize(1);
  const Batch batch = random_batch(config, 2, 8, 0);
  const std::int64_t step = engine.train_step(batch, 1e-3);
  const double before = sum_of(engine.stats(step));
  engine.evaluate(batch);
  CHECK(sum_of(engine.stats(step)) == before);
}

}  // namespace ferry::test
