// SPDX-License-Identifier: Apache-2.0
// Training steps timed on random tokens: `ferry bench step`; and how `ferry bench` reports times of steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/model_config.h"
#include "offload/engine.h"

namespace ferry {

/// Of one or more values.
struct Spread {
  double median = 0;
  double min = 0;
  double max = 0;
};
Spread spread_of(std::vector<double> values);

struct StepBenchOptions {
  std::int64_t steps = 20;         // that are timed
  std::int64_t untimed_steps = 3;  // before them, at least 1
  std::int64_t batch_size = 1;
  std::int64_t seq_len = 1;
  double lr = 3e-4;
  std::uint64_t seed = 0;  // of the tokens
};

struct StepBenchResult {
  std::int64_t steps = 0;
  std::int64_t untimed_steps = 0;
  std::int64_t tokens_per_step = 0;
  Spread step_ms;  // see StepStats::step_ms
  // Medians over the timed steps; see StepStats.
  double compute_ms = 0;
  double adamw_ms = 0;
  double launcher_wait_ms = 0;
  double wait_weights_ms = 0;
  double wait_optimizer_ms = 0;
  double wait_gradients_ms = 0;
  double wait_residuals_ms = 0;
  double wait_input_ms = 0;
  std::int64_t h2d_bytes = 0;
  std::int64_t d2h_bytes = 0;
};

/// Trains on uniform random tokens; the engine's weights are set and it was made for these extents. One step follows
/// the timed ones, so that the last of them overlaps with a successor too. Blocks.
StepBenchResult bench_steps(Engine& engine, const ModelConfig& config, const StepBenchOptions& options);

/// The timeline of kTraceSteps more steps, after bench_steps. Blocks.
std::vector<TimelineSpan> trace_steps(Engine& engine, const ModelConfig& config, const StepBenchOptions& options);

/// What a measurement is held against.
struct StepBenchContext {
  double model_flop = 0;              // of one step
  std::optional<double> peak_flop_s;  // of the device; none where it is not known
  std::size_t device_bytes = 0;       // at the peak
  std::size_t host_bytes = 0;
  std::optional<double> expected_ms = {};  // of a step, by its plan
};

/// Model FLOP per second over the device's peak, 0 to 1.
std::optional<double> model_flop_utilization(double model_flop, double step_ms, std::optional<double> peak_flop_s);

/// "median 143.2 ms (140.1 to 151.9)"
std::string describe(const Spread& step_ms);
/// "57.2k tokens/s"
std::string describe_speed(std::int64_t tokens, double step_ms);

/// "64.3 TFLOP"
std::string describe_flop(double flop);

/// Lines with a label each.
std::vector<std::string> describe(const StepBenchResult& result, const StepBenchContext& context);

}  // namespace ferry
