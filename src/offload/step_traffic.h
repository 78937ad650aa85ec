// SPDX-License-Identifier: Apache-2.0
// Bytes that a training step of the largest batch moves, from its plan alone.
#pragma once

#include <vector>

#include "offload/memory_plan.h"
#include "offload/step_plan.h"

namespace ferry {

/// By purpose. Rows that depend on the batch (distinct tokens) count as if all of them were distinct.
struct StepTraffic {
  std::vector<MemoryLine> h2d;
  std::vector<MemoryLine> d2h;
  std::size_t adamw_host_bytes = 0;    // read and written in host memory
  std::size_t adamw_device_bytes = 0;  // the same in device memory
};

/// `plan` is for training. Of a step after the first: what the slots still hold of the step before is out of date.
StepTraffic step_traffic(const StepPlan& plan);

/// Bytes that AdamW reads and writes per parameter, its gradient apart.
std::size_t adamw_elem_bytes(const ParameterArrays& arrays);

}  // namespace ferry
