// SPDX-License-Identifier: Apache-2.0
// `ferry bench step` and `ferry bench floor`: a training step, and its products and attention alone.
#include <fmt/core.h>

#include <optional>

#include "backend/device_peak.h"
#include "cli/bench_targets.h"
#include "cli/plan_report.h"
#include "cli/run_setup.h"
#include "cli/training_plan.h"
#include "config/option_value.h"
#include "model/model_flop.h"
#include "offload/step_floor.h"
#include "train/step_bench.h"
#include "train/trace_file.h"

namespace ferry {
namespace {

constexpr std::int64_t kDefaultSteps = 20;

/// With the values of `keys`.
void print_run(const RunConfig& config, const ModelConfig& model, const ParameterTable& parameters,
               std::initializer_list<const char*> keys) {
  print_line("model", fmt::format("{}: {}", config.model.empty() ? config.init_from : config.model,
                                  describe_model(model, parameters.n_parameters(), config.dtype)));
  std::string run = fmt::format("{} x {} tokens", config.sequences(), config.seq_len);
  for (const char* key : keys) run += fmt::format(", {} = {}", key, to_toml(get_option(config, *find_option(key))));
  print_line("run", run);
}

}  // namespace

void bench_training_steps(const CommandLine& line) {
  const RunConfig& config = line.config;
  const ModelConfig model = bench_model(line);
  std::optional<TraceFile> trace;
  if (!config.trace.empty()) trace.emplace(config.trace);
  const std::unique_ptr<Backend> backend = bench_backend(line);
  const TrainingPlan plan = plan_here(config, model, *backend);
  const EngineOptions& options = plan.step->options;
  Engine engine(*backend, model, options);
  print_run(config, model, engine.parameters(), {"offload", "recompute", "optimizer_state", "rounding"});
  print_line("plan", describe_offload(options, model.n_layers));
  TextReport expected;
  add_expected(expected, plan, backend->capabilities().is_device);
  for (const std::string& text : std::move(expected).lines()) print_line(text);
  engine.initialize(static_cast<std::uint64_t>(config.seed));
  const StepBenchContext context{.model_flop = model_flop(model, config.sequences(), config.seq_len),
                                 .peak_flop_s = dense_bf16_peak(backend->capabilities().description),
                                 .device_bytes = backend->device_bytes(),
                                 .host_bytes = backend->host_bytes(),
                                 .expected_ms = expected_step_ms(plan, backend->capabilities().is_device)};
  const StepBenchOptions steps{.steps = config.steps > 0 ? config.steps : kDefaultSteps,
                               .untimed_steps = config.untimed_steps,
                               .batch_size = config.sequences(),
                               .seq_len = config.seq_len,
                               .lr = config.lr,
                               .seed = static_cast<std::uint64_t>(config.seed)};
  const StepBenchResult result = bench_steps(engine, model, steps);
  for (const std::string& text : describe(result, context)) print_line(text);
  if (trace) trace->write(trace_steps(engine, model, steps));
}

void bench_floor(const CommandLine& line) {
  const RunConfig& config = line.config;
  const ModelConfig model = bench_model(line);
  const std::unique_ptr<Backend> backend = bench_backend(line);
  StepFloor floor(*backend, model, engine_options(config));
  print_run(config, model, floor.parameters(), {"recompute", "head"});
  const std::vector<double> step_ms = floor.run(config.floor_seconds);
  const Spread spread = spread_of(step_ms);
  print_line("floor", fmt::format("{}, {} steps back to back", describe(spread), step_ms.size()));
  print_line("speed", describe_speed(config.sequences() * config.seq_len, spread.median));
  print_line("products", fmt::format("{} matrix products and attentions of {} per step, {}/s", floor.ops().size(),
                                     describe_flop(floor.flop()), describe_flop(floor.flop() / spread.median * 1e3)));
}

}  // namespace ferry
