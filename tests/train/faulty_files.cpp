// SPDX-License-Identifier: Apache-2.0
// Definitions in the program itself come before those of the C library.
#include "train/faulty_files.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

namespace ferry::test {
namespace {

std::atomic<FileFault> armed_fault{FileFault::kNone};
std::atomic<std::int64_t> countdown_left{0};
std::atomic<std::int64_t> n_calls{0};

/// Whether this call fails.
bool strikes(bool is_write) {
  ++n_calls;
  if (armed_fault == FileFault::kNone) return false;
  const std::int64_t left = countdown_left--;
  if (left == 0 && armed_fault == FileFault::kKill) kill(getpid(), SIGKILL);
  if (left > 0 || (left < 0 && !is_write)) return false;
  errno = ENOSPC;
  return true;
}

}  // namespace

void arm_file_fault(FileFault fault, std::int64_t countdown) {
  countdown_left = countdown;
  n_calls = 0;
  armed_fault = fault;
}

std::int64_t file_calls() { return n_calls; }

}  // namespace ferry::test

using ferry::test::strikes;

extern "C" {

ssize_t write(int file, const void* data, size_t size) {
  const bool is_terminal = file <= STDERR_FILENO;
  return !is_terminal && strikes(true) ? -1 : syscall(SYS_write, file, data, size);
}

int fsync(int) { return strikes(false) ? -1 : 0; }

int rename(const char* from, const char* to) noexcept {
  return strikes(false) ? -1 : static_cast<int>(syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}

int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned int flags) noexcept {
  return strikes(false) ? -1 : static_cast<int>(syscall(SYS_renameat2, from_folder, from, to_folder, to, flags));
}

int mkdir(const char* path, mode_t mode) noexcept {
  return strikes(false) ? -1 : static_cast<int>(syscall(SYS_mkdirat, AT_FDCWD, path, mode));
}

int unlink(const char* path) noexcept {
  return strikes(false) ? -1 : static_cast<int>(syscall(SYS_unlinkat, AT_FDCWD, path, 0));
}

int unlinkat(int folder, const char* path, int flags) noexcept {
  return strikes(false) ? -1 : static_cast<int>(syscall(SYS_unlinkat, folder, path, flags));
}

}  // extern "C"
