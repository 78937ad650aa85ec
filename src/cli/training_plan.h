// SPDX-License-Identifier: Apache-2.0
// The memory of a run: limits of the machine and of the config, and what the planner makes of them.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "config/model_config.h"
#include "config/run_config.h"
#include "offload/step_estimate.h"
#include "offload/step_plan.h"

namespace ferry {

/// What is free; absent where nobody knows, or where it does not matter.
struct MemoryLimits {
  std::optional<std::size_t> device_bytes;
  std::optional<std::size_t> host_bytes;
  bool device_is_host = false;  // both come from the host's memory
};
MemoryLimits memory_limits(const Backend& backend);

/// Left of the free device memory for what the libraries load at their first use.
inline constexpr std::size_t kDeviceReserveBytes = std::size_t{512} << 20;

struct TrainingPlan {
  std::unique_ptr<StepPlan> step;
  std::vector<std::string> notes;  // for the user
  StepForecast forecast;           // of a training step
  MachineRates rates;              // that it was planned by
  std::string measured;            // where they come from: a file and its machine; empty = the defaults
};

enum class Passes {
  kTraining,
  kForward,  // no gradients and no optimizer state
};

/// Allocates nothing; reads the file of `rates` for training. Throws Error{kConfig}; Error{kIo} for that file;
/// Error{kMemory} when gpu_memory or host_memory is too small, with what the least plan takes.
TrainingPlan plan_training(const RunConfig& config, const ModelConfig& model, const ScratchSizes& sizes,
                           const MemoryLimits& limits, Passes passes = Passes::kTraining);

/// The same for a forward-only engine, planned for `options`: what stays on the device is the plan's choice.
TrainingPlan plan_generation(const RunConfig& config, const ModelConfig& model, const EngineOptions& options,
                             const Backend& backend);

/// plan_training() for this machine, then a warning where the system may refuse to pin as much.
TrainingPlan plan_here(const RunConfig& config, const ModelConfig& model, const Backend& backend,
                       Passes passes = Passes::kTraining);

}  // namespace ferry
