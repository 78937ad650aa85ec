// SPDX-License-Identifier: Apache-2.0
// `ferry plan`: what training would take, on this machine or on one with a GPU, without allocating it.
#include <fmt/core.h>

#include <memory>

#include "backend/backend.h"
#include "cli/commands.h"
#include "cli/plan_report.h"
#include "cli/run_setup.h"
#include "cli/training_plan.h"
#include "core/host_limits.h"
#include "core/human_units.h"
#include "model/llama.h"

namespace ferry {
namespace {

/// The backend, or what is known of CUDA's where there is no GPU.
struct PlannedBackend {
  std::unique_ptr<ScratchSizes> sizes;
  std::string name;
  bool is_device = true;
  MemoryLimits limits;  // of the device alone: the host may be another machine's
};

PlannedBackend planned_backend(const RunConfig& config) {
  PlannedBackend result;
  result.sizes = create_scratch_bound(config.backend, backend_options(config));
  if (result.sizes) {
    result.name = "cuda: no GPU here, so with gpu_memory = auto nothing stays there that can travel";
    return result;
  }
  auto backend = create_backend(config.backend, backend_options(config));
  result.name = backend->capabilities().name + ": " + backend->capabilities().description;
  result.is_device = backend->capabilities().is_device;
  result.limits.device_bytes = backend->free_device_bytes();
  result.sizes = std::move(backend);
  return result;
}

std::string describe_backend(const PlannedBackend& backend, const EngineOptions& options, const ModelConfig& model) {
  const LlamaShape shape(model, options.batch_size, options.seq_len);
  if (attention_scratch_is_exact(shape, options.dtype, *backend.sizes)) return backend.name;
  return backend.name + "; scratch of ops is an upper bound, as only cuDNN knows its own";
}

std::string describe_host(const StepPlan& plan) {
  const auto available = available_host_bytes();
  const std::size_t bytes = plan.host.memory.total_bytes();
  if (!available || bytes <= *available) return "";
  return fmt::format("more host memory than is available here ({})", human_bytes(*available));
}

}  // namespace

int run_plan(const CommandLine& line) {
  const RunConfig& config = line.config;
  const ModelConfig model = model_of(config);
  const PlannedBackend backend = planned_backend(config);
  const TrainingPlan plan = plan_training(config, model, *backend.sizes, backend.limits);
  const StepPlan& step = *plan.step;

  TextReport text;
  text.add("config", line.config_source.empty() ? "flags alone" : line.config_source);
  const std::string name = config.model.empty() ? config.init_from : config.model;
  text.add("model", name + ": " + describe_model(model, step.parameters.n_parameters(), config.dtype));
  text.add("backend", describe_backend(backend, step.options, model));
  text.add("step", fmt::format("{} x {} tokens", config.sequences(), config.seq_len));
  text.add("attention", describe_attention(step.options, model, *backend.sizes));
  text.add("offload", describe_offload(step.options, model.n_layers));
  for (const std::string& note : plan.notes) text.add("", note);
  text.add_lines("memory", memory_table(step.device.memory.peak_lines(), step.host.memory.lines()));
  if (const std::string host = describe_host(step); !host.empty()) text.add("", host);
  add_traffic(text, step);
  add_expected(text, plan, backend.is_device);
  for (const std::string& each : std::move(text).lines()) fmt::print("{}\n", each);
  return 0;
}

}  // namespace ferry
