// SPDX-License-Identifier: Apache-2.0
// All memory of an engine and what lives where, from config alone: what the engine allocates and `ferry plan` prints.
#pragma once

#include <array>
#include <utility>
#include <vector>

#include "config/model_config.h"
#include "offload/engine.h"
#include "offload/host_memory.h"
#include "offload/memory_plan.h"
#include "offload/parameter_arrays.h"
#include "offload/step_buffers.h"

namespace ferry {

/// `config`, after checking it and the options. Throws Error{kConfig}.
const ModelConfig& checked_model(const ModelConfig& config, const EngineOptions& options);

/// Rows of a vocabulary segment: those asked for, else as many as make a chunk's weights fit a layer's slot, and its
/// logits the place of the MLP's activations (3F columns). Chunks are of about equal size.
std::int64_t choose_vocab_chunk(const ModelConfig& config, const EngineOptions& options);

/// Where each segment lives.
std::vector<Home> choose_homes(const ParameterTable& parameters, const EngineOptions& options);

/// What the engine keeps of each parameter, at its home.
ArrayLayout array_layout(const ParameterTable& parameters, const EngineOptions& options);

/// Device memory for parameters: offsets into the arena by purpose.
struct DevicePlan {
  MemoryPlan memory;  // packed
  std::vector<MemoryPlan::Id> weight_slots;
  std::vector<std::pair<int, MemoryPlan::Id>> own_slots;  // by segment
  std::vector<MemoryPlan::Id> grad_slots;
  MemoryPlan::Id norm_grad_slot = 0;
  std::array<MemoryPlan::Id, kParameterArrays> arrays{};  // of what lives on the device
  MemoryPlan::Id norms = 0;
};

/// Host memory by purpose.
struct HostPlan {
  HostMemory memory;
  std::array<HostMemory::Id, kParameterArrays> arrays{};  // of what lives on the host
  HostMemory::Id tokens = 0;                              // ids, targets, order, distinct ids: 4 N; the row mask: V
  HostMemory::Id x = 0;                                   // (N, C), gathered embedding rows
  HostMemory::Id d_x = 0;                                 // (N, C), gradient of the embedding rows
  HostMemory::Id residuals = 0;                           // those that leave the device
  HostMemory::Id losses = 0;                              // kLossHistory + 1
  HostMemory::Id norms = 0;                               // two steps
  HostMemory::Id logits = 0;                              // one row of one chunk
  HostMemory::Id piece = 0;  // one piece of any array, and its low halves; only for what lives on the device
  HostMemory::Id piece_low = 0;
};

/// Nothing is allocated, however large the model. Its views, arrays and host memory are bound by the engine.
class StepPlan {
 public:
  /// Throws Error{kConfig}.
  StepPlan(const ModelConfig& config, const EngineOptions& options, const ScratchSizes& sizes);
  StepPlan(const StepPlan&) = delete;  // its buffers refer to its device plan
  StepPlan& operator=(const StepPlan&) = delete;

  bool anything_on(Home home) const { return arrays.size_bytes(ParameterArray::kWeight, home) > 0; }
  bool table_is_on(Home home) const { return arrays.home_of(0) == home; }  // the embedding starts the flat space
  bool takes_norms() const { return options.check_finite || options.grad_clip > 0; }
  /// Elements of a piece, in which segments travel and parameters are read and written.
  std::int64_t piece_elems() const;

  const ModelConfig config;
  const EngineOptions options;
  const ParameterTable parameters;
  ParameterArrays arrays;
  DevicePlan device;
  HostPlan host;
  StepBuffers buffers;

 private:
  void plan_device();
  void plan_host();
};

}  // namespace ferry
