// SPDX-License-Identifier: Apache-2.0
// Reads /sys. Source: the kernel's admin-guide/cputopology and sysfs-devices-node.
#include "core/cpu_topology.h"

#include <fmt/core.h>
#include <sched.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <string_view>

#include "core/error.h"
#include "core/host_limits.h"

namespace ferry {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kManyCores = 8;
constexpr std::size_t kFreeCores = 2;

/// "0-3,8" as numbers; empty when the file does not exist or holds anything else.
std::vector<int> read_cpu_list(const fs::path& file) {
  std::ifstream in(file);
  std::string text;
  std::getline(in, text);
  std::vector<int> cpus;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at < end) {
    int first = 0;
    auto [next, error] = std::from_chars(at, end, first);
    if (error != std::errc()) return {};
    int last = first;
    if (next < end && *next == '-') {
      const auto range = std::from_chars(next + 1, end, last);
      if (range.ec != std::errc() || last < first || last > CPU_SETSIZE) return {};
      next = range.ptr;
    }
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
    if (next < end && *next != ',') return {};
    at = next + 1;
  }
  return cpus;
}

/// The allowed CPUs of a node; all that are allowed where the node is not known or has none of them.
std::vector<int> cpus_of_node(const PoolPlacementQuery& query) {
  std::vector<int> cpus;
  if (query.numa_node >= 0) {
    const fs::path node = query.root / fmt::format("sys/devices/system/node/node{}", query.numa_node);
    std::ranges::set_intersection(query.allowed, read_cpu_list(node / "cpulist"), std::back_inserter(cpus));
  }
  return cpus.empty() ? query.allowed : cpus;
}

/// The first of each group of `cpus` that share a core.
std::vector<int> one_of_each_core(const std::vector<int>& cpus, const fs::path& root) {
  std::vector<int> cores;
  for (const int cpu : cpus) {
    const auto siblings =
        read_cpu_list(root / fmt::format("sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", cpu));
    const bool taken =
        std::ranges::any_of(cores, [&](int core) { return std::ranges::find(siblings, core) != siblings.end(); });
    if (!taken) cores.push_back(cpu);
  }
  return cores;
}

}  // namespace

std::vector<int> allowed_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return {0};
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

int available_threads() {
  const int allowed = static_cast<int>(allowed_cpus().size());
  return std::max(1, std::min(allowed, cpu_quota().value_or(allowed)));
}

std::string PoolPlacement::describe() const {
  const std::string threads = fmt::format("{} thread{}", n_threads, n_threads == 1 ? "" : "s");
  if (cpus.empty()) return threads;
  if (cpus.size() == 1) return fmt::format("{}, bound to CPU {}", threads, cpus.front());
  return fmt::format("{}, bound to CPUs {} to {}", threads, cpus.front(), cpus.back());
}

PoolPlacement place_pool(const PoolPlacementQuery& query) {
  FERRY_ASSERT(!query.allowed.empty());
  FERRY_CHECK(query.n_threads >= 0, kConfig, "threads is {}: expected 1 or more, or 0 for all that are useful",
              query.n_threads);
  const std::vector<int> cores = one_of_each_core(cpus_of_node(query), query.root);
  const std::size_t quota = query.quota ? static_cast<std::size_t>(std::max(1, *query.quota)) : cores.size();
  const std::size_t usable = std::min(cores.size(), quota);
  const std::size_t useful = usable >= kManyCores ? usable - kFreeCores : usable;
  const std::size_t wanted = query.n_threads > 0 ? static_cast<std::size_t>(query.n_threads) : useful;
  PoolPlacement placement{.n_threads = static_cast<int>(wanted), .cpus = {}};
  if (usable < kManyCores || wanted > useful || wanted == 1) return placement;
  placement.cpus.assign(cores.end() - static_cast<std::ptrdiff_t>(wanted - 1), cores.end());
  return placement;
}

PoolPlacement place_pool(int n_threads, int numa_node) {
  return place_pool(
      {.n_threads = n_threads, .numa_node = numa_node, .allowed = allowed_cpus(), .quota = cpu_quota(), .root = "/"});
}

}  // namespace ferry
