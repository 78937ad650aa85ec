// SPDX-License-Identifier: Apache-2.0
// Learning-rate schedules: constant, linear, cosine, warmup-stable-decay; all with linear warmup.
#pragma once

#include <cstdint>

namespace ferry {

enum class Schedule { kConstant, kLinear, kCosine, kWsd };

const char* to_string(Schedule schedule);

struct ScheduleOptions {
  Schedule schedule = Schedule::kConstant;
  double lr = 3e-4;
  std::int64_t steps = 0;         // of the whole run
  std::int64_t warmup_steps = 0;  // lr * (i + 1) / (warmup_steps + 1) at step i < warmup_steps: never 0
  std::int64_t decay_steps = 0;  // kWsd: steps below lr at the end; kLinear, kCosine: length of the decay, which starts
                                 // at lr right after the warmup, 0 = all steps left; kConstant: not used
  double min_lr_ratio = 0;       // the last step of a decay runs at lr * min_lr_ratio
};

/// Learning rate of step i, the first is 0. A decay reaches the floor exactly at its last step; after it the floor
/// holds. Throws Error{kConfig} for negative or contradictory lengths.
double learning_rate(const ScheduleOptions& options, std::int64_t step);

}  // namespace ferry
