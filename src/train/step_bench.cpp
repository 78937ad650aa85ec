// SPDX-License-Identifier: Apache-2.0
// A step is read one step later, as in training: reading never makes the engine wait.
#include "train/step_bench.h"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>

#include "core/error.h"
#include "core/human_units.h"
#include "core/rng.h"
#include "train/trace_file.h"

namespace ferry {
namespace {

Batch random_batch(const ModelConfig& config, const StepBenchOptions& options, std::uint64_t index) {
  Batch batch{.batch_size = options.batch_size, .seq_len = options.seq_len, .inputs = {}, .targets = {}};
  const std::int64_t n = options.batch_size * options.seq_len;
  const CounterRng rng(options.seed, fmt::format("bench batch {}", index));
  const auto token = [&](std::int64_t i) {
    return static_cast<std::int32_t>(rng.bits(static_cast<std::uint64_t>(i)) %
                                     static_cast<std::uint64_t>(config.vocab_size));
  };
  for (std::int64_t i = 0; i < n; ++i) {
    batch.inputs.push_back(token(i));
    batch.targets.push_back(token(n + i));
  }
  batch.n_valid_targets = n;
  return batch;
}

/// Launches a step with a batch of its own: a batch that came again at once would make all of its rows urgent.
auto launcher(Engine& engine, const ModelConfig& config, const StepBenchOptions& options) {
  constexpr std::int64_t kBatches = 4;
  std::vector<Batch> batches;
  for (std::uint64_t i = 0; i < kBatches; ++i) batches.push_back(random_batch(config, options, i));
  return [&engine, lr = options.lr, batches = std::move(batches)](std::int64_t step) {
    const auto batch = [&](std::int64_t i) { return batches.begin() + i % kBatches; };
    return engine.train_step(*batch(step), lr, &*batch(step + 1));
  };
}

template <class Value>
Value median_of(const std::vector<StepStats>& stats, Value StepStats::*field) {
  std::vector<Value> values;
  for (const StepStats& each : stats) values.push_back(each.*field);
  std::ranges::sort(values);
  return values[values.size() / 2];
}

std::string line(const char* label, const std::string& text) { return fmt::format("{:<9} {}", label, text); }

std::string describe_rate(std::int64_t size_bytes, double step_ms) {
  return fmt::format("{:.1f} GB/s", static_cast<double>(size_bytes) / step_ms / 1e6);
}

}  // namespace

Spread spread_of(std::vector<double> values) {
  FERRY_ASSERT(!values.empty());
  std::ranges::sort(values);
  const std::size_t n = values.size();
  return {.median = (values[(n - 1) / 2] + values[n / 2]) / 2, .min = values.front(), .max = values.back()};
}

StepBenchResult bench_steps(Engine& engine, const ModelConfig& config, const StepBenchOptions& options) {
  FERRY_ASSERT(options.steps >= 1 && options.untimed_steps >= 1);
  const auto launch = launcher(engine, config, options);
  std::vector<double> step_ms;
  std::vector<StepStats> stats;
  const std::int64_t measured = options.untimed_steps + options.steps;
  std::int64_t previous = launch(0);
  for (std::int64_t step = 0; step < measured; ++step) {
    const std::int64_t launched = launch(step + 1);
    engine.loss(previous);
    if (step >= options.untimed_steps) {
      stats.push_back(engine.stats(previous));
      step_ms.push_back(stats.back().step_ms);
    }
    previous = launched;
  }
  engine.finish();
  return {.steps = options.steps,
          .untimed_steps = options.untimed_steps,
          .tokens_per_step = options.batch_size * options.seq_len,
          .step_ms = spread_of(step_ms),
          .compute_ms = median_of(stats, &StepStats::compute_ms),
          .adamw_ms = median_of(stats, &StepStats::adamw_ms),
          .launcher_wait_ms = median_of(stats, &StepStats::launcher_wait_ms),
          .wait_weights_ms = median_of(stats, &StepStats::wait_weights_ms),
          .wait_optimizer_ms = median_of(stats, &StepStats::wait_optimizer_ms),
          .wait_gradients_ms = median_of(stats, &StepStats::wait_gradients_ms),
          .wait_residuals_ms = median_of(stats, &StepStats::wait_residuals_ms),
          .wait_input_ms = median_of(stats, &StepStats::wait_input_ms),
          .h2d_bytes = median_of(stats, &StepStats::h2d_bytes),
          .d2h_bytes = median_of(stats, &StepStats::d2h_bytes)};
}

std::vector<TimelineSpan> trace_steps(Engine& engine, const ModelConfig& config, const StepBenchOptions& options) {
  const auto launch = launcher(engine, config, options);
  engine.start_trace(kTraceSteps);
  std::int64_t previous = launch(0);
  for (std::int64_t step = 1; step < kTraceSteps; ++step) {
    const std::int64_t launched = launch(step);
    engine.loss(previous);
    previous = launched;
  }
  return engine.take_trace();
}

std::optional<double> model_flop_utilization(double model_flop, double step_ms, std::optional<double> peak_flop_s) {
  if (!peak_flop_s) return std::nullopt;
  return model_flop / (step_ms / 1e3) / *peak_flop_s;
}

std::string describe(const Spread& step_ms) {
  return fmt::format("median {:.3f} ms ({:.3f} to {:.3f})", step_ms.median, step_ms.min, step_ms.max);
}

std::string describe_speed(std::int64_t tokens, double step_ms) {
  return human_count(static_cast<double>(tokens) / step_ms * 1e3) + " tokens/s";
}

std::string describe_flop(double flop) {
  const std::string text = human_count(flop);
  const std::size_t digits = std::isalpha(static_cast<unsigned char>(text.back())) != 0 ? text.size() - 1 : text.size();
  return fmt::format("{} {}FLOP", text.substr(0, digits), text.substr(digits));
}

std::vector<std::string> describe(const StepBenchResult& result, const StepBenchContext& context) {
  const double ms = result.step_ms.median;
  const auto mfu = model_flop_utilization(context.model_flop, ms, context.peak_flop_s);
  const std::string share =
      mfu ? fmt::format("{:.1f} % of {:.0f} TFLOP/s", *mfu * 100, *context.peak_flop_s / 1e12) : "-";
  const std::string expected = context.expected_ms ? fmt::format("; the plan expected {:.3f} ms, {:.2f} of that",
                                                                 *context.expected_ms, *context.expected_ms / ms)
                                                   : "";
  return {line("step", fmt::format("{}, {} steps after {} untimed{}", describe(result.step_ms), result.steps,
                                   result.untimed_steps, expected)),
          line("speed", describe_speed(result.tokens_per_step, ms)),
          line("MFU", fmt::format("{}: {} of the model per step, {}/s", share, describe_flop(context.model_flop),
                                  describe_flop(context.model_flop / ms * 1e3))),
          line("compute", fmt::format("{:.3f} ms, first to last op", result.compute_ms)),
          line("adamw", fmt::format("{:.3f} ms busy on the CPU", result.adamw_ms)),
          line("waits", fmt::format("{:.3f} ms of the launching thread for updates", result.launcher_wait_ms)),
          line("stalls", fmt::format("of the compute stream: weights {:.3f} ms, optimizer {:.3f}, gradients {:.3f}, "
                                     "residuals {:.3f}, input {:.3f}",
                                     result.wait_weights_ms, result.wait_optimizer_ms, result.wait_gradients_ms,
                                     result.wait_residuals_ms, result.wait_input_ms)),
          line("to device", fmt::format("{} per step, {}", human_bytes(static_cast<std::size_t>(result.h2d_bytes)),
                                        describe_rate(result.h2d_bytes, ms))),
          line("to host", fmt::format("{} per step, {}", human_bytes(static_cast<std::size_t>(result.d2h_bytes)),
                                      describe_rate(result.d2h_bytes, ms))),
          line("memory",
               fmt::format("{} device, {} host", human_bytes(context.device_bytes), human_bytes(context.host_bytes)))};
}

}  // namespace ferry
