// SPDX-License-Identifier: Apache-2.0
// `ferry bench`: measures this machine. `ops` times every op beside the machine's own speed, `step` training steps,
// `floor` the products and attention of a step, `adamw` the optimizer's way through host memory.
#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>

#include "backend/backend.h"
#include "backend/device_peak.h"
#include "backend/op_bench.h"
#include "cli/commands.h"
#include "cli/plan_report.h"
#include "cli/run_setup.h"
#include "cli/training_plan.h"
#include "config/option_value.h"
#include "core/error.h"
#include "core/human_units.h"
#include "core/log.h"
#include "core/simd.h"
#include "core/thread_pool.h"
#include "model/model_flop.h"
#include "offload/step_floor.h"
#include "train/adamw_bench.h"
#include "train/step_bench.h"
#include "train/trace_file.h"

namespace ferry {
namespace {

constexpr std::int64_t kDefaultSteps = 20;
/// Rows of the head that `bench ops` takes at a time; a plan's chunks are as large (op_bench_models).
constexpr std::int64_t kHeadRows = 21376;
/// Elements of a row that `bench ops` wants of ops on (N, C) alone, by more sequences, so that no cache holds them.
constexpr std::int64_t kWideRow = 8192;

void print_line(const std::string& line) {
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

void print_line(const char* label, const std::string& text) { print_line(fmt::format("{:<9} {}", label, text)); }

ModelConfig bench_model(const CommandLine& line) {
  FERRY_CHECK(!line.config.model.empty() || !line.config.init_from.empty(), kConfig,
              "ferry bench {}: no model in '{}': set model (a preset, a Hugging Face folder or a config.json)",
              line.bench_target, line.config_source);
  return model_of(line.config);
}

std::unique_ptr<Backend> bench_backend(const CommandLine& line) {
  auto backend = create_backend(line.config.backend, backend_options(line.config));
  print_line("backend", backend->capabilities().name + ": " + backend->capabilities().description);
  return backend;
}

void print_run(const CommandLine& line, const ModelConfig& model, const ParameterTable& parameters) {
  const RunConfig& config = line.config;
  print_line("model", fmt::format("{}: {}", config.model.empty() ? config.init_from : config.model,
                                  describe_model(model, parameters.n_parameters(), config.dtype)));
  const auto value = [&config](const char* key) {
    return fmt::format("{} = {}", key, to_toml(get_option(config, *find_option(key))));
  };
  print_line("run", fmt::format("{} x {} tokens, {}, {}, {}, {}", config.sequences(), config.seq_len, value("offload"),
                                value("recompute"), value("optimizer_state"), value("rounding")));
}

/// One layer of the line's model.
OpBenchModel op_bench_model(const CommandLine& line, bool device) {
  const ModelConfig model = bench_model(line);
  OpBenchModel shapes;
  shapes.batch = line.config.batch_size;
  shapes.length = line.config.seq_len;
  shapes.width = model.hidden_size;
  shapes.ffn_width = model.intermediate_size;
  shapes.n_heads = model.n_heads;
  shapes.n_kv_heads = model.n_kv_heads;
  shapes.head_dim = model.head_dim;
  shapes.vocab_chunk = std::min(model.vocab_size, kHeadRows);
  const std::int64_t more = device ? std::max<std::int64_t>(1, kWideRow / model.hidden_size) : 1;
  shapes.narrow_batch = shapes.batch * more;
  shapes.dtypes = {line.config.dtype};
  return shapes;
}

/// The models of the backend unless the line or a file names one; `--dtype` leaves rows of one dtype.
std::vector<OpBenchModel> models_of(const CommandLine& line, bool device) {
  if (!line.runs_built_in()) return {op_bench_model(line, device)};
  std::vector<OpBenchModel> models = op_bench_models(device);
  if (!line.dtype_given) return models;
  for (OpBenchModel& model : models) std::erase_if(model.dtypes, [&](DType d) { return d != line.config.dtype; });
  return models;
}

/// The other of ferry's and cuDNN's attention than the line's; null where there is no GPU or no cuDNN.
std::unique_ptr<Backend> other_attention(const CommandLine& line, const Backend& backend) {
  if (backend.capabilities().name != "cuda") return nullptr;
  BackendOptions options = backend_options(line.config);
  const bool is_cudnn = options.attention == AttentionChoice::kCudnn;
  options.attention = is_cudnn ? AttentionChoice::kFerry : AttentionChoice::kCudnn;
  try {
    return create_backend("cuda", options);
  } catch (const Error& failure) {
    if (failure.kind() != ErrorKind::kConfig) throw;
    log::info("no rows of cuDNN's attention: {}", failure.what());
    return nullptr;
  }
}

void bench_all_ops(const CommandLine& line) {
  const std::unique_ptr<Backend> backend = bench_backend(line);
  const std::unique_ptr<Backend> other = other_attention(line, *backend);
  OpBenchOptions options;
  options.device = backend->capabilities().is_device;
  options.threads = line.config.threads > 0 ? static_cast<int>(line.config.threads) : available_threads();
  options.level = simd_level();
  options.models = models_of(line, options.device);
  options.other_attention = other.get();
  options.other_attention_name = line.config.attention == RunConfig::Attention::kCudnn ? "ferry" : "cudnn";
  print_line(op_bench_header());
  const auto rows = bench_ops(*backend, options, [](const OpBenchRow& row) { print_line(to_line(row)); });
  for (const std::string& text : op_bench_summary(rows)) print_line(text);
}

void bench_training_steps(const CommandLine& line) {
  const RunConfig& config = line.config;
  const ModelConfig model = bench_model(line);
  std::optional<TraceFile> trace;
  if (!config.trace.empty()) trace.emplace(config.trace);
  const std::unique_ptr<Backend> backend = bench_backend(line);
  const EngineOptions options = plan_here(config, model, *backend).step->options;
  Engine engine(*backend, model, options);
  print_run(line, model, engine.parameters());
  print_line("plan", describe_offload(options, model.n_layers));
  engine.initialize(static_cast<std::uint64_t>(config.seed));
  const StepBenchContext context{.model_flop = model_flop(model, config.sequences(), config.seq_len),
                                 .peak_flop_s = dense_bf16_peak(backend->capabilities().description),
                                 .device_bytes = backend->device_bytes(),
                                 .host_bytes = backend->host_bytes()};
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
  print_run(line, model, floor.parameters());
  const std::vector<double> step_ms = floor.run(config.floor_seconds);
  const Spread spread = spread_of(step_ms);
  print_line("floor", fmt::format("{}, {} steps back to back", describe(spread), step_ms.size()));
  print_line("speed", describe_speed(config.sequences() * config.seq_len, spread.median));
  print_line("products", fmt::format("{} matrix products and attentions of {} per step, {}/s", floor.ops().size(),
                                     describe_flop(floor.flop()), describe_flop(floor.flop() / spread.median * 1e3)));
}

/// One row of the table for `--threads`, else a sweep.
void bench_optimizer(const CommandLine& line) {
  const std::unique_ptr<Backend> backend = bench_backend(line);
  const int numa_node = backend->capabilities().numa_node;
  AdamwBenchOptions options{
      .n_params = line.config.adamw_params, .pools = adamw_bench_pools(numa_node), .level = simd_level()};
  if (line.config.threads > 0) options.pools = {place_pool(static_cast<int>(line.config.threads), numa_node)};
  print_line("AdamW", fmt::format("{} in pieces of 16 MiB, {}; GB/s, and the share of the pass in place",
                                  human_count(static_cast<double>(options.n_params)) + " parameters",
                                  to_string(adamw_path(options.level))));
  print_line(adamw_bench_header());
  const auto rows = bench_adamw(*backend, options, [](const AdamwBenchRow& row) { print_line(to_line(row)); });
  for (const std::string& text : adamw_bench_summary(rows)) print_line(text);
}

}  // namespace

int run_bench(const CommandLine& line) {
  if (line.bench_target == "ops") {
    bench_all_ops(line);
  } else if (line.bench_target == "step") {
    bench_training_steps(line);
  } else if (line.bench_target == "adamw") {
    bench_optimizer(line);
  } else {
    FERRY_ASSERT(line.bench_target == "floor");  // the command line knows no other
    bench_floor(line);
  }
  return 0;
}

}  // namespace ferry
