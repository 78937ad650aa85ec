// SPDX-License-Identifier: Apache-2.0
// System calls on files that fail, or kill the process, when told so.
#pragma once

#include <cstdint>

namespace ferry::test {

enum class FileFault {
  kNone,
  kFail,  // the call fails: no space left on the device
  kKill,  // the process ends by SIGKILL in place of the call
};

/// Lets the next `countdown`-th call of write, fsync, rename, mkdir or unlink, 0 being the next one, fail or kill; with
/// kFail all later writes fail too, as on a full disk. Of the whole test program, in which fsync does nothing else.
void arm_file_fault(FileFault fault, std::int64_t countdown);
/// Calls since it was armed last.
std::int64_t file_calls();

}  // namespace ferry::test
