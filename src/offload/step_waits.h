// SPDX-License-Identifier: Apache-2.0
// How long the compute stream stood still in a step, and for what.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "backend/backend.h"

namespace ferry {

/// What the compute stream waited for.
enum class WaitCause {
  kWeights,    // a copy of weights
  kOptimizer,  // AdamW: such a copy could not start earlier, or the launching thread could not go on
  kGradients,  // a free place for gradients, until what was in it is on the host
  kResiduals,  // residuals on their way to or from the host
  kInput,      // tokens and embedding rows
};
inline constexpr std::size_t kWaitCauses = 5;

/// Two timing events on the compute stream around each wait: the first is reached when the work before has ended, the
/// second when the wait is over. Their distance is what the wait cost. All calls come from the launching thread; none
/// blocks.
class StepWaits {
 public:
  static constexpr std::int64_t kHistory = 8;  // steps whose waits are kept

  StepWaits(Backend& backend, StreamRef compute) : backend_(backend), compute_(compute) {}

  /// Waits between begin_step and end_step are measured, all others are not.
  void begin_step(std::int64_t step);
  void end_step() { current_ = nullptr; }

  /// All work before the wait is enqueued.
  void begin();
  /// The wait is enqueued. May be left out: then there was no wait.
  void end(WaitCause cause);

  /// Milliseconds in `step`, one of the last kHistory, which the device has ended.
  double ms(std::int64_t step, WaitCause cause) const;

 private:
  struct Wait {
    WaitCause cause = WaitCause::kWeights;
    std::unique_ptr<Event> before;
    std::unique_ptr<Event> after;
  };
  /// Waits keep their events from one step to the next.
  struct Record {
    std::vector<Wait> waits;
    std::size_t n_waits = 0;
  };

  Backend& backend_;
  StreamRef compute_;
  std::array<Record, static_cast<std::size_t>(kHistory)> records_;
  Record* current_ = nullptr;
};

}  // namespace ferry
