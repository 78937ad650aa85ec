// SPDX-License-Identifier: Apache-2.0
// Which CPUs this process may use, and where the threads of a pool run best.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace ferry {

/// The affinity mask of the process, ascending. Never empty.
std::vector<int> allowed_cpus();

/// Threads this process may use: its affinity mask, bounded by the CPU quota of its control groups. At least 1.
int available_threads();

/// How many threads a pool has, and where those that it starts are bound.
struct PoolPlacement {
  int n_threads = 1;      // the caller's included
  std::vector<int> cpus;  // n_threads - 1 of them, ascending; empty: the system decides

  /// "14 threads, bound to CPUs 3 to 15", "2 threads"
  std::string describe() const;
};

struct PoolPlacementQuery {
  int n_threads = 0;         // asked for; 0 = as many as are useful
  int numa_node = -1;        // next to the device that uses the same memory; -1 = not known
  std::vector<int> allowed;  // CPUs, ascending; at least one
  std::optional<int> quota;  // of CPU time, in CPUs
  std::filesystem::path root = "/";
};

/// One thread for each physical core of the node, of what is allowed. Of eight cores or more, two are left to the
/// launching thread and the driver, and the threads are bound, to the highest ones. With fewer cores, or more threads
/// than that, nothing is bound: processes that share a small machine would meet on the same cores.
/// Throws Error{kConfig} for a negative n_threads.
PoolPlacement place_pool(const PoolPlacementQuery& query);

/// For this process.
PoolPlacement place_pool(int n_threads, int numa_node);

}  // namespace ferry
