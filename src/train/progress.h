// SPDX-License-Identifier: Apache-2.0
// What a person sees while training runs: one redrawn line on a terminal, plain lines elsewhere.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

namespace ferry {

/// Numbers of the progress line.
struct ProgressState {
  std::int64_t step = 0;  // steps done
  std::int64_t steps = 0;
  double loss = 0;
  std::optional<double> grad_norm;
  double lr = 0;
  std::optional<double> tokens_per_s;
  std::size_t device_bytes = 0;
  std::size_t host_bytes = 0;
  std::optional<double> eta_s;
};

/// At most `width` columns; what matters least is left out first.
std::string progress_line(const ProgressState& state, int width);

/// Draws to a terminal or file. Log messages clear the line first and are followed by a fresh one.
/// One live line at a time (asserted): the logger's hook has no argument.
class Progress {
 public:
  enum class Mode {
    kQuiet,  // nothing
    kPlain,  // one line per log()
    kLive,   // one line, redrawn in place
  };
  /// kLive where `out` is a terminal that understands it, else kPlain.
  static Mode mode_for(std::FILE* out, bool quiet);

  Progress(std::FILE* out, Mode mode);
  /// Clears a live line.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// After every step: redraws a live line, at most ten times a second.
  void update(const ProgressState& state);
  /// Every log_every steps: a plain line.
  void log(const ProgressState& state);
  /// A line that stays, above a live line.
  void print(std::string_view text);
  /// What goes on between two steps: takes the place of a live line until the next update().
  void show(std::string_view text);
  /// Removes a live line until the next update().
  void clear();

 private:
  void draw(const std::string& line);
  void clear_locked();

  std::FILE* out_;
  Mode mode_;
  std::mutex mutex_;  // guards the rest: log messages come from any thread
  bool drawn_ = false;
  std::chrono::steady_clock::time_point last_draw_{};
};

}  // namespace ferry
