// SPDX-License-Identifier: Apache-2.0
// Ctrl-C, SIGTERM, SIGHUP and a lost reader of stdout as a flag that a loop reads between two steps.
#pragma once

namespace ferry {

/// While it lives, the first SIGINT, SIGTERM, SIGHUP or SIGPIPE only sets a flag; another one that is no SIGPIPE ends
/// the process at once with 128 + signal. A SIGHUP or SIGPIPE that is ignored, as SIGHUP is under nohup, stays ignored.
/// One at a time (asserted). The destructor restores the handlers that were there before.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  /// The signal that arrived, or 0.
  static int signal();
  /// "SIGINT", "SIGTERM", "SIGHUP", "SIGPIPE"
  static const char* name(int signal);
};

}  // namespace ferry
