// SPDX-License-Identifier: Apache-2.0
// Tests of train/interrupt.h; signals that end a process are raised in a child.
#include "train/interrupt.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "catch.h"

using namespace ferry;

namespace {

/// Wait status of a child that runs fn and, if it gets there, exits with 0.
template <class Fn>
int status_of_child(Fn&& fn) {
  const pid_t child = fork();
  if (child == 0) {
    for (const int number : {SIGINT, SIGTERM, SIGPIPE}) signal(number, SIG_DFL);  // not the test program's own
    fn();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

}  // namespace

TEST_CASE("the first signal sets the flag and the process lives on") {
  const int number = GENERATE(SIGINT, SIGTERM);
  const InterruptGuard guard;
  CHECK(InterruptGuard::signal() == 0);
  raise(number);
  CHECK(InterruptGuard::signal() == number);
}

TEST_CASE("a second signal ends the process at once with 128 + signal") {
  const int first = GENERATE(SIGINT, SIGTERM);
  const int second = GENERATE(SIGINT, SIGTERM);
  const int status = status_of_child([&] {
    const InterruptGuard guard;
    raise(first);
    raise(second);
  });
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 128 + second);
}

TEST_CASE("the guard's end restores the old handlers and the flag") {
  const int status = status_of_child([] {
    {
      const InterruptGuard guard;
      raise(SIGINT);
    }
    if (InterruptGuard::signal() != 0) _exit(1);
    raise(SIGINT);
  });
  REQUIRE(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGINT);
}

TEST_CASE("a SIGHUP that is ignored, as under nohup, stays ignored") {
  const int status = status_of_child([] {
    signal(SIGHUP, SIG_IGN);
    {
      const InterruptGuard guard;
      raise(SIGHUP);
      if (InterruptGuard::signal() != 0) _exit(1);
    }
    raise(SIGHUP);
  });
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("a reader of stdout that is gone sets the flag, however often, and Ctrl-C still quits") {
  const int status = status_of_child([] {
    const InterruptGuard guard;
    for (int i = 0; i < 3; ++i) raise(SIGPIPE);
    if (InterruptGuard::signal() != SIGPIPE) _exit(1);
    raise(SIGINT);
  });
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 128 + SIGINT);
}
