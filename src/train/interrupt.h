// SPDX-License-Identifier: Apache-2.0
// Ctrl-C, SIGTERM, SIGHUP and a lost reader of stdout as a flag that a loop reads between two steps.
#pragma once

namespace ferry {

/// While it lives, the first SIGINT, SIGTERM, SIGHUP or SIGPIPE sets a flag and is answered on stderr at once, however
/// long the loop's step is; another one that is no SIGPIPE ends the process at once with 128 + signal. A SIGHUP or
/// SIGPIPE that is ignored, as SIGHUP is under nohup, stays ignored. One at a time (asserted). The destructor restores
/// the handlers that were there before.
class InterruptGuard {
 public:
  /// `answer` is a literal: what the first signal prints. It begins and ends with a line break, which part it from a
  /// live line and from the ^C of terminals.
  explicit InterruptGuard(const char* answer);
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  /// What the first signal prints from now on; a literal.
  void answer_with(const char* answer);

  /// The signal that arrived, or 0.
  static int signal();
  /// "SIGINT", "SIGTERM", "SIGHUP", "SIGPIPE"
  static const char* name(int signal);
};

}  // namespace ferry
