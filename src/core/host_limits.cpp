// SPDX-License-Identifier: Apache-2.0
// Reads /proc and the control groups. Source: proc(5), cgroups(7), the kernel's cgroup-v1/memory and cgroup-v2.
#include "core/host_limits.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
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

/// The group and its parents; a container sees its own group as the root.
void take_groups(std::optional<std::uint64_t>& least, const fs::path& mount, std::string group,
                 const GroupFiles& files) {
  while (true) {
    take_least(least, left_in_group(mount / group, files));
    if (group.empty()) return;
    const std::size_t slash = group.rfind('/');
    group.erase(slash == std::string::npos ? 0 : slash);
  }
}

}  // namespace

std::optional<std::size_t> available_host_bytes(const fs::path& root) {
  std::optional<std::uint64_t> least;
  if (const auto kib = number_in(root / "proc/meminfo", "MemAvailable:")) least = *kib * 1024;
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "4:memory:/a/b", "0::/a/b"
    const std::size_t path = line.find(":/");
    if (path == std::string::npos) continue;
    const std::string group = line.substr(path + 2);
    if (line.starts_with("0:")) take_groups(least, root / "sys/fs/cgroup", group, kVersion2);
    if (line.find(":memory") != std::string::npos) take_groups(least, root / "sys/fs/cgroup/memory", group, kVersion1);
  }
  if (!least) return std::nullopt;
  return static_cast<std::size_t>(*least);
}

std::optional<std::size_t> lockable_host_bytes() {
  rlimit limit{};
  if (geteuid() == 0 || getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return static_cast<std::size_t>(limit.rlim_cur);
}

}  // namespace ferry
