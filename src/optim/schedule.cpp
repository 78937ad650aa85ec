// SPDX-License-Identifier: Apache-2.0
// Learning-rate schedules. The decay runs over whole steps: its last step has the floor exactly.
#include "optim/schedule.h"

#include <cmath>
#include <numbers>

#include "core/error.h"

namespace ferry {
namespace {

/// The decay falls from 1 at step `top` to min_lr_ratio at step `bottom`.
struct Decay {
  std::int64_t top = 0;
  std::int64_t bottom = 0;
};

Decay decay_of(const ScheduleOptions& o) {
  if (o.schedule == Schedule::kWsd) return {o.steps - o.decay_steps - 1, o.steps - 1};
  const std::int64_t length = o.decay_steps > 0 ? o.decay_steps : o.steps - o.warmup_steps;
  return {o.warmup_steps, o.warmup_steps + length - 1};
}

void check(const ScheduleOptions& o) {
  FERRY_CHECK(std::isfinite(o.lr) && o.lr >= 0, kConfig, "lr is {}: expected a finite number of 0 or more", o.lr);
  FERRY_CHECK(o.min_lr_ratio >= 0 && o.min_lr_ratio <= 1, kConfig, "min_lr_ratio is {}: expected 0 to 1",
              o.min_lr_ratio);
  FERRY_CHECK(o.steps >= 0, kConfig, "steps is {}: expected 0 or more", o.steps);
  FERRY_CHECK(o.warmup_steps >= 0, kConfig, "warmup_steps is {}: expected 0 or more", o.warmup_steps);
  FERRY_CHECK(o.decay_steps >= 0, kConfig, "decay_steps is {}: expected 0 or more", o.decay_steps);
  FERRY_CHECK(o.warmup_steps <= o.steps, kConfig, "warmup_steps is {}, steps {}: lower warmup_steps", o.warmup_steps,
              o.steps);
  if (o.schedule == Schedule::kConstant) return;
  FERRY_CHECK(o.schedule != Schedule::kWsd || o.decay_steps > 0, kConfig,
              "schedule wsd has decay_steps 0: set the length of the final decay, or use schedule constant");
  FERRY_CHECK(o.decay_steps <= o.steps - o.warmup_steps, kConfig,
              "warmup_steps {} and decay_steps {} exceed steps {}: lower one of them", o.warmup_steps, o.decay_steps,
              o.steps);
}

}  // namespace

const char* to_string(Schedule schedule) {
  switch (schedule) {
    case Schedule::kConstant: return "constant";
    case Schedule::kLinear: return "linear";
    case Schedule::kCosine: return "cosine";
    case Schedule::kWsd: return "wsd";
  }
  return "unknown";
}

double learning_rate(const ScheduleOptions& options, std::int64_t step) {
  check(options);
  if (step < options.warmup_steps) {
    return options.lr * static_cast<double>(step + 1) / static_cast<double>(options.warmup_steps + 1);
  }
  if (options.schedule == Schedule::kConstant) return options.lr;
  const auto [top, bottom] = decay_of(options);
  if (step >= bottom) return options.lr * options.min_lr_ratio;
  if (step <= top) return options.lr;
  const double done = static_cast<double>(step - top) / static_cast<double>(bottom - top);
  const double share = options.schedule == Schedule::kCosine ? 0.5 * (1 + std::cos(std::numbers::pi * done)) : 1 - done;
  return options.lr * (options.min_lr_ratio + (1 - options.min_lr_ratio) * share);
}

}  // namespace ferry
