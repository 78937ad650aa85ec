// SPDX-License-Identifier: Apache-2.0
// Wall-clock time, and speed over the parts of a run that count.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

namespace ferry {

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
};

/// Tokens and steps per second since start(), pauses left out, and the same since the last lap.
class Throughput {
 public:
  struct Rate {
    std::optional<double> tokens_per_s;  // none before the first step counts
    std::optional<double> step_ms;
  };

  /// From here on steps count: called after the first step, which also pays for warming up.
  void start();
  bool started() const { return watch_.has_value(); }
  void count_step(std::int64_t n_tokens);
  void pause();
  void resume();

  Rate total() const { return rate(now()); }
  /// Since the last lap() or start().
  Rate lap();

 private:
  struct Count {
    double seconds = 0;
    std::int64_t steps = 0;
    std::int64_t tokens = 0;
  };
  Count now() const;
  static Rate rate(const Count& count);

  std::optional<Stopwatch> watch_;
  double paused_s_ = 0;
  std::optional<double> pause_began_s_;  // while paused
  std::int64_t steps_ = 0;
  std::int64_t tokens_ = 0;
  Count last_lap_;
};

}  // namespace ferry
