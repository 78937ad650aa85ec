// SPDX-License-Identifier: Apache-2.0
// Reads /proc and the control groups. Source: proc(5), cgroups(7), the kernel's cgroup-v1/memory, scheduler/sched-bwc
// and cgroup-v2.
#include "core/host_limits.h"

#include <fmt/core.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>

namespace ferry {
namespace {

namespace fs = std::filesystem;

/// The number behind `key` in a file of "key number" lines; with an empty key, the file's only number.
std::optional<std::uint64_t> number_in(const fs::path& file, std::string_view key) {
  std::ifstream in(file);
  std::string word;
  while (in && !key.empty() && in >> word && word != key) {
  }
  std::uint64_t number = 0;
  if (in >> number) return number;
  return std::nullopt;
}

struct GroupFiles {
  const char* limit;
  const char* usage;
  const char* reclaimable;  // page cache, in memory.stat
};
constexpr GroupFiles kVersion1 = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};
constexpr GroupFiles kVersion2 = {"memory.max", "memory.current", "inactive_file"};

std::optional<std::uint64_t> left_in_group(const fs::path& folder, const GroupFiles& files) {
  const auto limit = number_in(folder / files.limit, "");  // "max" is no number
  const auto usage = number_in(folder / files.usage, "");
  if (!limit || !usage) return std::nullopt;
  const std::uint64_t reclaimable = number_in(folder / "memory.stat", files.reclaimable).value_or(0);
  const std::uint64_t held = *usage - std::min(*usage, reclaimable);
  return *limit - std::min(*limit, held);
}

void take_least(std::optional<std::uint64_t>& least, std::optional<std::uint64_t> value) {
  if (value) least = least ? std::min(*least, *value) : *value;
}

std::optional<std::uint64_t> rounded_up(std::uint64_t quota, std::uint64_t period) {
  if (period == 0) return std::nullopt;
  return std::max<std::uint64_t>(1, (quota + period - 1) / period);
}

/// "200000 100000", "max 100000"
std::optional<std::uint64_t> cpus_of_version2(const fs::path& folder) {
  std::ifstream in(folder / "cpu.max");
  std::uint64_t quota = 0;
  std::uint64_t period = 0;
  if (in >> quota >> period) return rounded_up(quota, period);
  return std::nullopt;
}

/// A quota of -1 is none.
std::optional<std::uint64_t> cpus_of_version1(const fs::path& folder) {
  std::ifstream in(folder / "cpu.cfs_quota_us");
  std::int64_t quota = 0;
  if (!(in >> quota) || quota <= 0) return std::nullopt;
  return rounded_up(static_cast<std::uint64_t>(quota), number_in(folder / "cpu.cfs_period_us", "").value_or(0));
}

/// The group and its parents; a container sees its own group as the root.
template <class Read>
void take_groups(std::optional<std::uint64_t>& least, const fs::path& mount, std::string group, Read&& read) {
  while (true) {
    take_least(least, read(mount / group));
    if (group.empty()) return;
    const std::size_t slash = group.rfind('/');
    group.erase(slash == std::string::npos ? 0 : slash);
  }
}

/// Calls fn(version, group) for each control group of the process: "0::/a/b" is of version 2, "4:cpu,cpuacct:/a/b" of
/// version 1 if `controller` is one of its names.
template <class Fn>
void for_each_group(const fs::path& root, std::string_view controller, Fn&& fn) {
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const std::size_t names = line.find(':');
    const std::size_t path = line.find(":/");
    if (names == std::string::npos || path == std::string::npos) continue;
    const std::string controllers = fmt::format(",{},", line.substr(names + 1, path - std::min(path, names + 1)));
    if (line.starts_with("0:")) fn(2, line.substr(path + 2));
    if (controllers.find(fmt::format(",{},", controller)) != std::string::npos) fn(1, line.substr(path + 2));
  }
}

}  // namespace

std::optional<std::size_t> available_host_bytes(const fs::path& root) {
  std::optional<std::uint64_t> least;
  if (const auto kib = number_in(root / "proc/meminfo", "MemAvailable:")) least = *kib * 1024;
  for_each_group(root, "memory", [&](int version, const std::string& group) {
    const GroupFiles& files = version == 2 ? kVersion2 : kVersion1;
    const fs::path mount = root / (version == 2 ? "sys/fs/cgroup" : "sys/fs/cgroup/memory");
    take_groups(least, mount, group, [&](const fs::path& folder) { return left_in_group(folder, files); });
  });
  if (!least) return std::nullopt;
  return static_cast<std::size_t>(*least);
}

std::optional<int> cpu_quota(const fs::path& root) {
  std::optional<std::uint64_t> least;
  for_each_group(root, "cpu", [&](int version, const std::string& group) {
    const fs::path mount = root / (version == 2 ? "sys/fs/cgroup" : "sys/fs/cgroup/cpu");
    take_groups(least, mount, group, version == 2 ? cpus_of_version2 : cpus_of_version1);
  });
  if (!least) return std::nullopt;
  return static_cast<int>(std::min<std::uint64_t>(*least, INT_MAX));
}

std::optional<std::size_t> lockable_host_bytes() {
  rlimit limit{};
  if (geteuid() == 0 || getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return static_cast<std::size_t>(limit.rlim_cur);
}

}  // namespace ferry
