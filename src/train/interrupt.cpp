// SPDX-License-Identifier: Apache-2.0
// Signal handlers: only async-signal-safe calls inside them.
#include "train/interrupt.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <array>
#include <atomic>

#include "core/error.h"

namespace ferry {
namespace {

constexpr std::array<int, 4> kSignals{SIGINT, SIGTERM, SIGHUP, SIGPIPE};

// A handler has no argument of its own, so its state is global.
std::atomic<int> pending_signal{0};
static_assert(std::atomic<int>::is_always_lock_free);
std::atomic<const char*> first_answer{""};
static_assert(std::atomic<const char*>::is_always_lock_free);
std::atomic<bool> guard_exists{false};
std::array<struct sigaction, kSignals.size()> previous_actions;

/// A terminal that is gone loses the text and nothing else: the SIGPIPE of this write finds the flag set.
void print(const char* text) { [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text, strlen(text)); }

bool is_first(int number) {
  int none = 0;
  return pending_signal.compare_exchange_strong(none, number);
}

void on_signal(int number) {
  const int errno_before = errno;
  if (is_first(number)) {
    print(first_answer.load());
  } else if (number != SIGPIPE) {  // of which every line that is printed brings another
    print("\n");                   // the shell's prompt begins a line
    _exit(128 + number);
  }
  errno = errno_before;
}

}  // namespace

InterruptGuard::InterruptGuard(const char* answer) {
  FERRY_ASSERT(!guard_exists.exchange(true));
  answer_with(answer);
  pending_signal = 0;
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i], nullptr, &previous_actions[i]);
    const bool may_stay = kSignals[i] == SIGHUP || kSignals[i] == SIGPIPE;
    const bool stays = may_stay && previous_actions[i].sa_handler == SIG_IGN;
    if (!stays) sigaction(kSignals[i], &action, nullptr);
  }
}

InterruptGuard::~InterruptGuard() {
  for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &previous_actions[i], nullptr);
  pending_signal = 0;
  guard_exists = false;
}

void InterruptGuard::answer_with(const char* answer) { first_answer = answer; }

int InterruptGuard::signal() { return pending_signal.load(); }

const char* InterruptGuard::name(int signal) {
  switch (signal) {
    case SIGTERM: return "SIGTERM";
    case SIGHUP: return "SIGHUP";
    case SIGPIPE: return "SIGPIPE";
    default: return "SIGINT";
  }
}

}  // namespace ferry
