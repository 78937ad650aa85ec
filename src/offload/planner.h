// SPDX-License-Identifier: Apache-2.0
// Chooses what an engine keeps on the device, so that its memory stays within a budget.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "config/model_config.h"
#include "offload/engine.h"
#include "offload/machine_rates.h"

namespace ferry {

/// Options of the engine that the planner may change; all others are pins.
struct PlanFreedom {
  bool weight_slots = false;
  bool vocab_chunk = false;
  bool resident_state_layers = false;
  bool resident_layers = false;
  bool residuals = false;
  bool recompute = false;  // keep_layers
  bool head = false;       // HeadMode::kLogits where that fits
  bool mlp_cut = false;
  bool offload = false;  // of a forward-only engine
};

/// Device memory that the arena may take.
struct DeviceBudget {
  enum class Kind {
    kNone,   // whatever the options need: nothing is chosen
    kMin,    // as little as works
    kBytes,  // as fast as `bytes` allow
  };
  Kind kind = Kind::kNone;
  std::size_t bytes = 0;
  std::string what;  // "gpu_memory = 4GiB", for messages
};

struct PlanRequest {
  EngineOptions options;  // where free, the defaults
  PlanFreedom free;
  DeviceBudget device;
  std::optional<std::size_t> host_bytes;  // absent = no limit
  MachineRates rates;
};

struct PlanChoice {
  EngineOptions options;
  std::vector<std::string> notes;  // choices that change the order of sums, and so the last bits of a run
};

/// Deterministic: the same request gives the same choice. Too small a budget loses, in this order: residuals on the
/// device; then, with a note, the whole MLP and large vocabulary chunks, whichever frees more. A larger one gains:
/// layers that live on the device with AdamW, layers that keep their activations, and the logits of all vocabulary
/// chunks, in what numbers give the shortest estimated step at the given rates; then a third weight slot and layers
/// that keep their weights.
/// A forward-only engine has everything on the device where that fits or nothing limits it, else what leaves least to
/// travel.
/// Throws Error{kConfig}; Error{kMemory} with the least that works.
PlanChoice choose_plan(const ModelConfig& config, const PlanRequest& request, const ScratchSizes& sizes);

}  // namespace ferry
