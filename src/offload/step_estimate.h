// SPDX-License-Identifier: Apache-2.0
// How long a training step takes at a machine's rates: to compare plans with each other, and to tell beforehand.
#pragma once

#include <cstdint>

#include "offload/machine_rates.h"
#include "offload/step_plan.h"

namespace ferry {

/// Seconds of a step. Its parts overlap: the slowest counts, and a little of all.
struct StepForecast {
  double total_s = 0;
  double device_s = 0;      // products, attention, and AdamW of what lives on the device
  double host_s = 0;        // host memory, which AdamW and copies share
  double h2d_s = 0;         // copies to the device
  double d2h_s = 0;         // copies to the host
  double clipped_s = 0;     // with grad_clip: backward, then AdamW on the host; else 0
  double adamw_bytes = 0;   // of host memory, read and written
  double copied_bytes = 0;  // both ways

  /// "host memory": which part is the slowest.
  const char* bound() const;
};

/// Counts work that is large: products, attention, AdamW, copies. Norms, activations and launches are the little that
/// is added. So plans are ranked well, within a factor of two at rates of another machine too.
class StepEstimate {
 public:
  StepEstimate(const StepPlan& base, const MachineRates& rates);

  /// What a plan has beyond the base.
  struct More {
    std::int64_t state_layers = 0;  // that live on the device
    std::int64_t keep_layers = 0;   // that keep their activations
    std::int64_t weight_slots = 0;
    std::int64_t weight_layers = 0;  // whose weights keep their place
  };
  StepForecast forecast(const More& more) const;

 private:
  struct Arithmetic {
    double products_flop = 0;
    double attention_forward_flop = 0;
    double attention_backward_flop = 0;
  };
  double seconds(const Arithmetic& work) const;
  void count_arithmetic(const StepPlan& base);
  void count_bytes(const StepPlan& base);

  const MachineRates rates_;
  const bool clips_;
  Arithmetic step_;       // of the base
  Arithmetic forward_;    // its forward pass
  Arithmetic recompute_;  // of one layer
  double adamw_host_bytes_ = 0, adamw_device_bytes_ = 0, h2d_bytes_ = 0, d2h_bytes_ = 0;
  double layer_update_bytes_ = 0;  // read and written by AdamW for one layer
  double layer_bytes_ = 0;         // weights of one layer
  double chunk_bytes_ = 0;         // of the vocabulary
};

}  // namespace ferry
