// SPDX-License-Identifier: Apache-2.0
#include "core/cpu_topology.h"

#include <fmt/core.h>

#include <algorithm>

#include "catch.h"
#include "temp_file.h"
#include "thrown.h"

namespace ferry {
namespace {

namespace fs = std::filesystem;
using Cpus = std::vector<int>;

Cpus range(int first, int end) {
  Cpus cpus;
  for (int cpu = first; cpu < end; ++cpu) cpus.push_back(cpu);
  return cpus;
}

/// A machine whose CPU i shares its core with CPU i + n_cores, and whose nodes hold the lower and the upper cores.
struct Machine : TempFolder {
  explicit Machine(int n_cores, bool two_threads = false) {
    for (int core = 0; core < n_cores; ++core) {
      const std::string list = two_threads ? fmt::format("{},{}", core, core + n_cores) : fmt::format("{}", core);
      put(fmt::format("cpu/cpu{}/topology/thread_siblings_list", core), list);
      if (two_threads) put(fmt::format("cpu/cpu{}/topology/thread_siblings_list", core + n_cores), list);
    }
    const int half = n_cores / 2;
    put("node/node0/cpulist", fmt::format("0-{},{}-{}", half - 1, n_cores, n_cores + half - 1));
    put("node/node1/cpulist", fmt::format("{}-{},{}-{}", half, n_cores - 1, n_cores + half, 2 * n_cores - 1));
    query.allowed = range(0, two_threads ? 2 * n_cores : n_cores);
    query.root = path();
  }
  void put(const std::string& file, const std::string& text) const {
    const fs::path whole = path() / "sys/devices/system" / file;
    fs::create_directories(whole.parent_path());
    write("sys/devices/system/" + file, text + "\n");
  }

  PoolPlacementQuery query;
};

TEST_CASE("a small machine's cores all work, unbound") {
  const Machine machine(4);
  const PoolPlacement placement = place_pool(machine.query);
  CHECK(placement.n_threads == 4);
  CHECK(placement.cpus.empty());
  CHECK(placement.describe() == "4 threads");
}

TEST_CASE("of many cores two stay free, and threads are bound to the highest") {
  const Machine machine(16);
  const PoolPlacement placement = place_pool(machine.query);
  CHECK(placement.n_threads == 14);
  CHECK(placement.cpus == range(3, 16));
  CHECK(placement.describe() == "14 threads, bound to CPUs 3 to 15");
}

TEST_CASE("two threads of a core count once") {
  const Machine machine(16, true);
  const PoolPlacement placement = place_pool(machine.query);
  CHECK(placement.n_threads == 14);
  CHECK(placement.cpus == range(3, 16));
}

TEST_CASE("the device's node is preferred, and ignored where none of it is allowed") {
  Machine machine(32, true);
  machine.query.numa_node = 1;
  CHECK(place_pool(machine.query).cpus == range(19, 32));
  machine.query.allowed = range(0, 16);
  CHECK(place_pool(machine.query).cpus == range(3, 16));
  machine.query.numa_node = 7;
  CHECK(place_pool(machine.query).cpus == range(3, 16));
}

TEST_CASE("what is allowed bounds the pool: the affinity mask and the groups' quota") {
  Machine machine(16);
  machine.query.allowed = {1, 4, 9};
  CHECK(place_pool(machine.query).n_threads == 3);
  machine.query.allowed = range(0, 16);
  machine.query.quota = 10;
  CHECK(place_pool(machine.query).n_threads == 8);
  machine.query.quota = 2;
  CHECK(place_pool(machine.query).n_threads == 2);
  CHECK(place_pool(machine.query).cpus.empty());
}

TEST_CASE("a number that is asked for holds, and is bound where cores are left") {
  Machine machine(16);
  machine.query.n_threads = 6;
  CHECK(place_pool(machine.query).cpus == range(11, 16));
  machine.query.n_threads = 1;
  CHECK(place_pool(machine.query).n_threads == 1);
  CHECK(place_pool(machine.query).cpus.empty());
  machine.query.n_threads = 40;
  CHECK(place_pool(machine.query).n_threads == 40);
  CHECK(place_pool(machine.query).cpus.empty());
  machine.query.n_threads = -1;
  CHECK(thrown([&] { place_pool(machine.query); }).find("threads is -1") != std::string::npos);
}

TEST_CASE("a system that says nothing of its cores, or nonsense, counts each CPU as one") {
  const TempFolder empty;
  CHECK(place_pool({.n_threads = 0, .numa_node = -1, .allowed = range(0, 9), .quota = {}, .root = empty.path()})
            .n_threads == 7);
  const Machine machine(9);
  machine.put("cpu/cpu0/topology/thread_siblings_list", "0-x");
  machine.put("cpu/cpu1/topology/thread_siblings_list", "9999999999");
  machine.put("cpu/cpu2/topology/thread_siblings_list", "5-2");
  CHECK(place_pool(machine.query).n_threads == 7);
}

TEST_CASE("this process may run somewhere") {
  CHECK_FALSE(allowed_cpus().empty());
  CHECK(std::ranges::is_sorted(allowed_cpus()));
  CHECK(available_threads() >= 1);
  CHECK(available_threads() <= static_cast<int>(allowed_cpus().size()));
  CHECK(place_pool(0, -1).n_threads >= 1);
}

}  // namespace
}  // namespace ferry
