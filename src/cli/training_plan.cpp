// SPDX-License-Identifier: Apache-2.0
// From option values to a request of the planner.
#include "cli/training_plan.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "cli/plan_report.h"
#include "cli/run_setup.h"
#include "config/option_value.h"
#include "config/text_file.h"
#include "core/error.h"
#include "core/host_limits.h"
#include "core/human_units.h"
#include "core/log.h"
#include "io/printable.h"
#include "offload/planner.h"
#include "train/rates_file.h"

namespace ferry {
namespace {

PlanFreedom freedom_of(const RunConfig& config) {
  return {.weight_slots = config.weight_slots == 0,
          .vocab_chunk = config.vocab_chunk == 0,
          .resident_state_layers = config.resident_state_layers < 0,
          .resident_layers = config.resident_layers < 0,
          .residuals = config.residuals == RunConfig::Residuals::kAuto,
          .recompute = config.recompute == "auto",
          .head = config.head == "auto",
          .mlp_cut = config.mlp_chunk == "auto"};
}

DeviceBudget budget_of(const RunConfig& config, const MemoryLimits& limits) {
  using Kind = DeviceBudget::Kind;
  if (config.gpu_memory == "min") return {Kind::kMin, 0, "gpu_memory = min"};
  if (config.gpu_memory != "auto") {
    return {Kind::kBytes, static_cast<std::size_t>(*parse_size(config.gpu_memory)),
            fmt::format("gpu_memory = {}", config.gpu_memory)};
  }
  if (!limits.device_bytes) return {};
  const std::size_t bytes = *limits.device_bytes - std::min(*limits.device_bytes, kDeviceReserveBytes);
  return {Kind::kBytes, bytes,
          fmt::format("gpu_memory = auto: {} of device memory are free, {} of them are for libraries",
                      human_bytes(*limits.device_bytes), human_bytes(kDeviceReserveBytes))};
}

/// Advice to keep less for AdamW, where that is possible.
const char* smaller_state(const EngineOptions& options) {
  if (!options.training || options.dtype != DType::kBf16) return "";
  switch (options.optimizer_state) {
    case OptimizerState::kF32: return ", set optimizer_state = mixed or bf16";
    case OptimizerState::kMixed: return ", set optimizer_state = bf16";
    case OptimizerState::kBf16: break;
  }
  return "";
}

/// What helps where the host's memory is too small. Of a limit that is the machine's nothing can be raised.
std::string host_advice(const RunConfig& config, const EngineOptions& options, bool device_is_host) {
  std::string ways = config.host_memory == "auto" ? "free host memory" : "raise host_memory";
  if (options.cache_tokens > 0) {
    if (!device_is_host && config.gpu_memory != "auto") ways += ", raise gpu_memory";
  } else if (!device_is_host) {
    ways += ", keep more on the device (offload, resident_state_layers)";
  }
  ways += smaller_state(options);
  if (options.training) ways += ", freeze parameters";
  return ways + ", or use a smaller model";
}

void check_host(const RunConfig& config, const StepPlan& plan, std::optional<std::size_t> limit, bool device_too) {
  const std::size_t bytes = plan.host.memory.total_bytes() + (device_too ? plan.device.memory.arena_bytes() : 0);
  if (!limit || bytes <= *limit) return;
  const std::string who = config.host_memory == "auto"
                              ? fmt::format("host_memory = auto: {} are available", human_bytes(*limit))
                              : fmt::format("host_memory = {}", config.host_memory);
  std::vector<MemoryLine> lines = plan.host.memory.lines();
  add_line(lines, "the device's", bytes - plan.host.memory.total_bytes());
  detail::throw_error(ErrorKind::kMemory,
                      fmt::format("{}, the {} needs {} ({}): {}", who, plan.options.cache_tokens > 0 ? "model" : "plan",
                                  human_bytes(bytes), list_of(lines), host_advice(config, plan.options, device_too)));
}

std::optional<std::size_t> host_limit(const RunConfig& config, const MemoryLimits& limits) {
  if (config.host_memory == "auto") return limits.host_bytes;
  return static_cast<std::size_t>(*parse_size(config.host_memory));
}

void check_any_trained(const RunConfig& config, const ParameterTable& parameters) {
  FERRY_CHECK(std::ranges::any_of(parameters.parameters(), &ParameterInfo::trained), kConfig,
              "freeze = {} matches all {} parameters, nothing is left to train: leave out a pattern, or give one that "
              "matches fewer names, as model.layers.0.* does",
              shown(to_toml(OptionValue(config.freeze))), parameters.parameters().size());
}

/// What keys of [plan] leave unused of a size that training may take; empty where little is left.
std::string unused_note(const PlanRequest& request, const StepPlan& plan) {
  const std::size_t bytes = plan.device.memory.arena_bytes();
  const bool sized = plan.options.training && request.device.kind == DeviceBudget::Kind::kBytes;
  if (!sized || bytes > request.device.bytes / 10 * 9) return "";
  std::vector<const char*> given;
  const auto add = [&given](bool free, const char* key) {
    if (!free) given.push_back(key);
  };
  add(request.free.weight_slots, "weight_slots");
  add(request.free.resident_state_layers, "resident_state_layers");
  add(request.free.resident_layers, "resident_layers");
  add(request.free.recompute, "recompute");
  add(request.free.head, "head");
  if (given.empty()) return "";
  return fmt::format("{} leaves {} unused, with {} given: leave them out to spend it", request.device.what,
                     human_bytes(request.device.bytes - bytes), fmt::join(given, ", "));
}

struct Place {
  const ScratchSizes& sizes;
  bool device_is_host = false;
};

TrainingPlan plan_request(const RunConfig& config, const ModelConfig& model, const PlanRequest& request,
                          const Place& place) {
  const PlanChoice choice = choose_plan(model, request, place.sizes);
  TrainingPlan plan;
  plan.step = std::make_unique<StepPlan>(model, choice.options, place.sizes);
  plan.rates = request.rates;
  if (request.options.training) plan.forecast = StepEstimate(*plan.step, request.rates).forecast({});
  check_host(config, *plan.step, request.host_bytes, place.device_is_host && config.host_memory == "auto");
  for (const std::string& note : choice.notes) {
    plan.notes.push_back(
        fmt::format("{} ({}): sums run in another order than with more memory", note, request.device.what));
  }
  const std::string unused = config.gpu_memory != "auto" ? unused_note(request, *plan.step) : "";
  if (!unused.empty()) plan.notes.push_back(unused);
  return plan;
}

void warn_of_locked_memory(const StepPlan& plan, const Backend& backend) {
  const std::size_t bytes = plan.host.memory.total_bytes();
  const auto lockable = backend.capabilities().is_device ? lockable_host_bytes() : std::nullopt;
  if (!lockable || *lockable >= bytes) return;
  log::warn(
      "the limit on locked memory is {}, the plan pins {}: copies are slower where the system refuses to pin (raise it "
      "with `ulimit -l unlimited`)",
      human_bytes(*lockable), human_bytes(bytes));
}

}  // namespace

MemoryLimits memory_limits(const Backend& backend) {
  return {.device_bytes = backend.free_device_bytes(),
          .host_bytes = available_host_bytes(),
          .device_is_host = !backend.capabilities().is_device};
}

TrainingPlan plan_training(const RunConfig& config, const ModelConfig& model, const ScratchSizes& sizes,
                           const MemoryLimits& limits, Passes passes) {
  PlanRequest request{.options = engine_options(config),
                      .free = freedom_of(config),
                      .device = budget_of(config, limits),
                      .host_bytes = host_limit(config, limits),
                      .rates = {}};
  request.options.training = passes == Passes::kTraining;
  std::string measured;
  if (request.options.training && !config.rates.empty()) {
    const RatesFile file = read_rates_file(config.rates);
    request.rates = file.rates;
    measured = printable_name(fmt::format("{}: {}, {}", config.rates, file.description, file.date));
  }
  TrainingPlan plan = plan_request(config, model, request, {sizes, limits.device_is_host});
  if (request.options.training) check_any_trained(config, plan.step->parameters);
  plan.measured = std::move(measured);
  return plan;
}

TrainingPlan plan_here(const RunConfig& config, const ModelConfig& model, const Backend& backend, Passes passes) {
  TrainingPlan plan = plan_training(config, model, backend, memory_limits(backend), passes);
  warn_of_locked_memory(*plan.step, backend);
  return plan;
}

TrainingPlan plan_generation(const RunConfig& config, const ModelConfig& model, const EngineOptions& options,
                             const Backend& backend) {
  const MemoryLimits limits = memory_limits(backend);
  const PlanRequest request{
      .options = options,
      .free = {.vocab_chunk = true, .resident_state_layers = true, .mlp_cut = true, .offload = true},
      .device = budget_of(config, limits),
      .host_bytes = host_limit(config, limits),
      .rates = {}};
  TrainingPlan plan = plan_request(config, model, request, {backend, limits.device_is_host});
  warn_of_locked_memory(*plan.step, backend);
  return plan;
}

}  // namespace ferry
