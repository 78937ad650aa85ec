// SPDX-License-Identifier: Apache-2.0
#include "core/host_limits.h"

#include "catch.h"
#include "temp_file.h"

namespace ferry {
namespace {

namespace fs = std::filesystem;

/// A system with 8 GiB available.
struct System : TempFolder {
  System() { put("proc/meminfo", "MemTotal:       16777216 kB\nMemFree:  1048576 kB\nMemAvailable:    8388608 kB\n"); }
  void put(const std::string& file, const std::string& text) const {
    fs::create_directories((path() / file).parent_path());
    write(file, text);
  }
  std::optional<std::size_t> available() const { return available_host_bytes(path()); }
};

const std::string kGroup = "slice/job";
constexpr std::size_t kGiB = std::size_t{1} << 30;

TEST_CASE("without groups the kernel's estimate counts") {
  const System system;
  CHECK(system.available() == 8 * kGiB);
}

TEST_CASE("a system that says nothing sets no limit") {
  const TempFolder empty;
  CHECK_FALSE(available_host_bytes(empty.path()).has_value());
}

TEST_CASE("the limit of a version 2 group counts, less what it holds for good") {
  const System system;
  system.put("proc/self/cgroup", "0::/" + kGroup + "\n");
  system.put("sys/fs/cgroup/slice/job/memory.max", "4294967296\n");
  system.put("sys/fs/cgroup/slice/job/memory.current", "2147483648\n");
  CHECK(system.available() == 2 * kGiB);
  system.put("sys/fs/cgroup/slice/job/memory.stat", "anon 5\nfile 7\ninactive_file 1073741824\nactive_file 9\n");
  CHECK(system.available() == 3 * kGiB);
}

TEST_CASE("the tightest of all parents counts") {
  const System system;
  system.put("proc/self/cgroup", "0::/" + kGroup + "\n");
  system.put("sys/fs/cgroup/slice/job/memory.max", "max\n");
  system.put("sys/fs/cgroup/slice/job/memory.current", "1\n");
  CHECK(system.available() == 8 * kGiB);
  system.put("sys/fs/cgroup/slice/memory.max", "1073741824\n");
  system.put("sys/fs/cgroup/slice/memory.current", "0\n");
  CHECK(system.available() == kGiB);
}

TEST_CASE("a container that is the root of its groups is found") {
  const System system;
  system.put("proc/self/cgroup", "9:name=systemd:/\n4:memory:/" + kGroup + "\n0::/\n");
  system.put("sys/fs/cgroup/memory/memory.limit_in_bytes", "3221225472\n");
  system.put("sys/fs/cgroup/memory/memory.usage_in_bytes", "1073741824\n");
  CHECK(system.available() == 2 * kGiB);
  system.put("sys/fs/cgroup/memory.max", "1073741824\n");
  system.put("sys/fs/cgroup/memory.current", "4294967296\n");
  CHECK(system.available() == 0);
}

TEST_CASE("a limit beyond the machine is none") {
  const System system;
  system.put("proc/self/cgroup", "4:memory:/\n");
  system.put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  system.put("sys/fs/cgroup/memory/memory.usage_in_bytes", "1073741824\n");
  CHECK(system.available() == 8 * kGiB);
}

TEST_CASE("the CPU quota of a version 2 group or of its parents counts, rounded up") {
  const System system;
  CHECK_FALSE(cpu_quota(system.path()).has_value());
  system.put("proc/self/cgroup", "0::/" + kGroup + "\n");
  system.put("sys/fs/cgroup/slice/job/cpu.max", "max 100000\n");
  CHECK_FALSE(cpu_quota(system.path()).has_value());
  system.put("sys/fs/cgroup/slice/cpu.max", "250000 100000\n");
  CHECK(cpu_quota(system.path()) == 3);
  system.put("sys/fs/cgroup/slice/job/cpu.max", "1000 100000\n");
  CHECK(cpu_quota(system.path()) == 1);
}

TEST_CASE("the CPU quota of a version 1 group counts, and -1 is none") {
  const System system;
  system.put("proc/self/cgroup", "3:cpuset:/x\n4:cpu,cpuacct:/job\n");
  system.put("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "400000\n");
  system.put("sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
  CHECK(cpu_quota(system.path()) == 4);
  system.put("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "-1\n");
  CHECK_FALSE(cpu_quota(system.path()).has_value());
}

TEST_CASE("this system says something") { CHECK(available_host_bytes().value_or(0) > 0); }

}  // namespace
}  // namespace ferry
