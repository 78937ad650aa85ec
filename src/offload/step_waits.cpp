// SPDX-License-Identifier: Apache-2.0
// Events around waits.
#include "offload/step_waits.h"

namespace ferry {

void StepWaits::begin_step(std::int64_t step) {
  current_ = &records_[static_cast<std::size_t>(step % kHistory)];
  current_->n_waits = 0;
}

void StepWaits::begin() {
  if (current_ == nullptr) return;
  if (current_->n_waits == current_->waits.size()) {
    current_->waits.push_back({.before = backend_.create_event(), .after = backend_.create_event()});
  }
  backend_.record(current_->waits[current_->n_waits].before.get(), compute_);
}

void StepWaits::end(WaitCause cause) {
  if (current_ == nullptr) return;
  Wait& wait = current_->waits[current_->n_waits];
  backend_.record(wait.after.get(), compute_);
  wait.cause = cause;
  ++current_->n_waits;
}

double StepWaits::ms(std::int64_t step, WaitCause cause) const {
  const Record& record = records_[static_cast<std::size_t>(step % kHistory)];
  double sum = 0;
  for (std::size_t i = 0; i < record.n_waits; ++i) {
    const Wait& wait = record.waits[i];
    if (wait.cause == cause) sum += backend_.elapsed_ms(wait.before.get(), wait.after.get());
  }
  return sum;
}

}  // namespace ferry
