// SPDX-License-Identifier: Apache-2.0
#include "train/step_bench.h"

#include <set>

#include "catch.h"
#include "train/tiny_run.h"
#include "train/trace_file.h"

namespace ferry {
namespace {

using test::TinyRun;

StepBenchResult measured(std::int64_t steps, std::int64_t untimed_steps) {
  TinyRun run;
  StepBenchOptions options;
  options.steps = steps;
  options.untimed_steps = untimed_steps;
  options.batch_size = TinyRun::kBatchSize;
  options.seq_len = TinyRun::kSeqLen;
  return bench_steps(*run.engine, run.config, options);
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("a bench of steps measures every quantity") {
  const StepBenchResult result = measured(3, 2);
  CHECK(result.steps == 3);
  CHECK(result.untimed_steps == 2);
  CHECK(result.tokens_per_step == 64);
  CHECK(result.step_ms.min > 0);
  CHECK(result.step_ms.min <= result.step_ms.median);
  CHECK(result.step_ms.median <= result.step_ms.max);
  CHECK(result.compute_ms > 0);
  CHECK(result.adamw_ms > 0);
  CHECK(result.launcher_wait_ms >= 0);
  CHECK(result.h2d_bytes > result.d2h_bytes);  // weights travel twice
  CHECK(result.d2h_bytes > 0);
}

TEST_CASE("a bench of one step is its own median") {
  const Spread spread = measured(1, 1).step_ms;
  CHECK(spread.min == spread.median);
  CHECK(spread.max == spread.median);
}

TEST_CASE("a trace follows the timed steps") {
  TinyRun run;
  const StepBenchOptions options{.batch_size = TinyRun::kBatchSize, .seq_len = TinyRun::kSeqLen};
  std::set<std::int64_t> steps;
  for (const TimelineSpan& span : trace_steps(*run.engine, run.config, options)) steps.insert(span.step);
  CHECK(std::ssize(steps) == kTraceSteps);
}

TEST_CASE("the median of an even number of values lies between the middle two") {
  CHECK(spread_of({4, 1, 3, 2}).median == 2.5);
  CHECK(spread_of({5, 1, 3}).median == 3);
  CHECK(spread_of({5, 1, 3}).min == 1);
  CHECK(spread_of({5, 1, 3}).max == 5);
}

TEST_CASE("model FLOP utilization is a share of the peak, or unknown") {
  CHECK(model_flop_utilization(50e12, 100, 1000e12) == 0.5);
  CHECK_FALSE(model_flop_utilization(50e12, 100, std::nullopt));
}

TEST_CASE("FLOP are shown with a unit that fits") {
  CHECK(describe_flop(64.3e12) == "64.3 TFLOP");
  CHECK(describe_flop(3.21e9) == "3.21 GFLOP");
  CHECK(describe_flop(12) == "12 FLOP");
}

TEST_CASE("the report of a bench has speed, bytes moved and utilization") {
  const StepBenchResult result{.steps = 20,
                               .untimed_steps = 3,
                               .tokens_per_step = 8192,
                               .step_ms = {200, 190, 210.5},
                               .compute_ms = 150,
                               .adamw_ms = 120,
                               .launcher_wait_ms = 30,
                               .wait_weights_ms = 1,
                               .wait_optimizer_ms = 2,
                               .wait_gradients_ms = 3,
                               .wait_residuals_ms = 4,
                               .wait_input_ms = 5,
                               .h2d_bytes = std::int64_t{4} << 30,
                               .d2h_bytes = std::int64_t{2} << 30};
  std::string text;
  for (const std::string& line : describe(
           result, {.model_flop = 50e12, .peak_flop_s = 1000e12, .device_bytes = 1 << 30, .host_bytes = 3U << 30})) {
    text.append(line).append("\n");
  }
  INFO(text);
  for (const char* line :
       {"step      median 200.000 ms (190.000 to 210.500), 20 steps after 3 untimed\n", "speed     41.0k tokens/s\n",
        "MFU       25.0 % of 1000 TFLOP/s: 50.0 TFLOP of the model per step, 250 TFLOP/s\n", "compute   150.000 ms",
        "adamw     120.000 ms", "waits     30.000 ms",
        "stalls    of the compute stream: weights 1.000 ms, optimizer 2.000, gradients 3.000, residuals 4.000, input "
        "5.000\n",
        "to device 4.0 GiB per step, 21.5 GB/s\n", "to host   2.0 GiB per step, 10.7 GB/s\n",
        "memory    1.0 GiB device, 3.0 GiB host\n"}) {
    INFO(line);
    CHECK(has(text, line));
  }
  CHECK(
      has(describe(result,
                   {.model_flop = 1e12, .peak_flop_s = {}, .device_bytes = 0, .host_bytes = 0, .expected_ms = 180})[0],
          "20 steps after 3 untimed; the plan expected 180.000 ms, 0.90 of that"));
  CHECK(has(describe(result, {.model_flop = 1e12, .peak_flop_s = {}, .device_bytes = 0, .host_bytes = 0})[2],
            "MFU       -: "));
}

}  // namespace ferry
