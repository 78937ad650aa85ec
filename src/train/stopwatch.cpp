// SPDX-License-Identifier: Apache-2.0
// Throughput over counted steps.
#include "train/stopwatch.h"

namespace ferry {

void Throughput::start() { watch_.emplace(); }

void Throughput::count_step(std::int64_t n_tokens) {
  if (!started()) return;
  ++steps_;
  tokens_ += n_tokens;
}

void Throughput::pause() {
  if (started() && !pause_began_s_) pause_began_s_ = watch_->seconds();
}

void Throughput::resume() {
  if (!pause_began_s_) return;
  paused_s_ += watch_->seconds() - *pause_began_s_;
  pause_began_s_.reset();
}

Throughput::Count Throughput::now() const {
  if (!started()) return {};
  return {.seconds = pause_began_s_.value_or(watch_->seconds()) - paused_s_, .steps = steps_, .tokens = tokens_};
}

Throughput::Rate Throughput::rate(const Count& count) {
  if (count.steps == 0 || count.seconds <= 0) return {};
  return {.tokens_per_s = static_cast<double>(count.tokens) / count.seconds,
          .step_ms = count.seconds * 1000 / static_cast<double>(count.steps)};
}

Throughput::Rate Throughput::lap() {
  const Count count = now();
  const Count since{.seconds = count.seconds - last_lap_.seconds,
                    .steps = count.steps - last_lap_.steps,
                    .tokens = count.tokens - last_lap_.tokens};
  last_lap_ = count;
  return rate(since);
}

}  // namespace ferry
