// SPDX-License-Identifier: Apache-2.0
// Tests of train/interrupt.h; signals that end a process are raised in a child.
#include "train/interrupt.h"

#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <string>
#include <utility>

#include "catch.h"

using namespace ferry;

namespace {

constexpr const char* kAnswer = "\nanswered\n";

struct ChildEnd {
  int status = 0;   // of waitpid
  std::string err;  // what it wrote to stderr: less than a pipe holds
};

/// A child that runs fn and, if it gets there, exits with 0.
template <class Fn>
ChildEnd end_of_child(Fn&& fn) {
  std::array<int, 2> ends{};
  REQUIRE(pipe(ends.data()) == 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    for (const int number : {SIGINT, SIGTERM, SIGPIPE}) signal(number, SIG_DFL);  // not the test program's own
    fn();
    _exit(0);
  }
  close(ends[1]);
  ChildEnd end;
  waitpid(child, &end.status, 0);
  std::array<char, 1000> text{};
  const ssize_t size = read(ends[0], text.data(), text.size());
  if (size > 0) end.err.assign(text.data(), static_cast<std::size_t>(size));
  close(ends[0]);
  return end;
}

template <class Fn>
int status_of_child(Fn&& fn) {
  return end_of_child(std::forward<Fn>(fn)).status;
}

}  // namespace

TEST_CASE("the first signal sets the flag and the process lives on") {
  const int number = GENERATE(SIGINT, SIGTERM);
  const InterruptGuard guard(kAnswer);
  CHECK(InterruptGuard::signal() == 0);
  raise(number);
  CHECK(InterruptGuard::signal() == number);
}

TEST_CASE("a second signal ends the process at once with 128 + signal") {
  const int first = GENERATE(SIGINT, SIGTERM);
  const int second = GENERATE(SIGINT, SIGTERM);
  const int status = status_of_child([&] {
    const InterruptGuard guard(kAnswer);
    raise(first);
    raise(second);
  });
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 128 + second);
}

TEST_CASE("the first signal is answered at once, and quitting ends the line") {
  const int number = GENERATE(SIGINT, SIGTERM, SIGPIPE);
  const ChildEnd first = end_of_child([&] {
    const InterruptGuard guard(kAnswer);
    errno = 7;
    raise(number);
    if (errno != 7) _exit(1);
    if (number == SIGPIPE) raise(number);
  });
  CHECK(first.status == 0);
  CHECK(first.err == kAnswer);
  const ChildEnd second = end_of_child([&] {
    InterruptGuard guard(kAnswer);
    guard.answer_with("\nin other words\n");
    raise(number);
    raise(SIGINT);
  });
  CHECK(WEXITSTATUS(second.status) == 128 + SIGINT);
  CHECK(second.err == "\nin other words\n\n");
}

TEST_CASE("a signal sets the flag where nobody reads the answer") {
  const int status = status_of_child([] {
    const InterruptGuard guard(kAnswer);
    std::array<int, 2> ends{};
    if (pipe(ends.data()) != 0) _exit(2);
    close(ends[0]);
    dup2(ends[1], STDERR_FILENO);
    raise(SIGINT);
    if (InterruptGuard::signal() != SIGINT) _exit(1);
  });
  CHECK(status == 0);
}

TEST_CASE("the guard's end restores the old handlers and the flag") {
  const int status = status_of_child([] {
    {
      const InterruptGuard guard(kAnswer);
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
      const InterruptGuard guard(kAnswer);
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
    const InterruptGuard guard(kAnswer);
    for (int i = 0; i < 3; ++i) raise(SIGPIPE);
    if (InterruptGuard::signal() != SIGPIPE) _exit(1);
    raise(SIGINT);
  });
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 128 + SIGINT);
}
