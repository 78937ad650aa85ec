// SPDX-License-Identifier: Apache-2.0
// How much host memory and CPU time the system lets this process have.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>

namespace ferry {

/// What may still be allocated: MemAvailable, or what the control groups of the process (version 1 or 2, parents too)
/// leave of their limits, if that is less. Files are read below `root`; absent where they say nothing.
std::optional<std::size_t> available_host_bytes(const std::filesystem::path& root = "/");

/// The CPU time that the process's control groups (version 1 or 2, parents too) grant, in CPUs, rounded up; absent = no
/// limit. Files are read below `root`.
std::optional<int> cpu_quota(const std::filesystem::path& root = "/");

/// RLIMIT_MEMLOCK: how much may be pinned; absent = no limit, or a process that none binds.
std::optional<std::size_t> lockable_host_bytes();

}  // namespace ferry
