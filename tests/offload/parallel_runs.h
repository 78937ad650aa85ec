// SPDX-License-Identifier: Apache-2.0
// Many independent runs on a few threads, each under a watchdog; Catch2 hears of them on one thread, at the end.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace ferry::test {

/// "" when all is well, else what is not.
using Run = std::function<std::string()>;

struct NamedRun {
  std::string name;
  Run run;
};

/// Runs all on `n_threads` threads. Returns "name: fault" of those that are not well, in order; what a run throws is
/// one. A run that takes longer than two minutes hangs: its name is printed and the program aborted.
std::vector<std::string> run_all(const std::vector<NamedRun>& runs, int n_threads);

}  // namespace ferry::test
