// SPDX-License-Identifier: Apache-2.0
// A rough duration of a training step, to compare plans with each other.
#pragma once

#include <cstdint>

#include "offload/step_plan.h"

namespace ferry {

/// Compute, AdamW on the host and both directions of the bus overlap: the slowest counts, and a little of the others,
/// so that memory to spare is never idle. Only ratios of rates matter to a choice; they are those of one machine (H200,
/// PCIe Gen5 x16, 24 cores), and within a factor of two those of smaller ones.
class StepEstimate {
 public:
  explicit StepEstimate(const StepPlan& base);

  struct More {
    std::int64_t state_layers = 0;  // that live on the device
    std::int64_t keep_layers = 0;   // that keep their activations
    std::int64_t weight_slots = 0;
    std::int64_t weight_layers = 0;  // whose weights keep their place
  };
  double seconds(const More& more) const;

 private:
  double flop_ = 0;            // of the base
  double recompute_flop_ = 0;  // of one layer
  double host_bytes_ = 0, device_bytes_ = 0, h2d_bytes_ = 0, d2h_bytes_ = 0;
  double layer_update_bytes_ = 0;  // read and written by AdamW for one layer
  double layer_bytes_ = 0;         // weights of one layer
  double chunk_bytes_ = 0;         // of the vocabulary
};

}  // namespace ferry
