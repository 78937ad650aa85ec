// SPDX-License-Identifier: Apache-2.0
// The few system calls that the C++ library does not offer.
#include "io/posix_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <system_error>

#include "core/error.h"

namespace ferry {

void FileDescriptor::reset() noexcept {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

std::string system_message() { return std::system_category().message(errno); }

std::filesystem::path temporary_sibling(const std::filesystem::path& path) {
  static std::atomic<int> counter = 0;
  return path.parent_path() / fmt::format(".{}.tmp-{}-{}", path.filename().string(), ::getpid(), counter++);
}

void write_all(const FileDescriptor& file, std::span<const std::byte> bytes, const std::filesystem::path& path) {
  while (!bytes.empty()) {
    const ssize_t n_written = ::write(file.get(), bytes.data(), bytes.size());
    if (n_written < 0 && errno == EINTR) continue;
    FERRY_CHECK(n_written > 0, kIo, "cannot write {}: {}", path.string(), system_message());
    bytes = bytes.subspan(static_cast<std::size_t>(n_written));
  }
}

void sync_to_disk(const std::filesystem::path& path) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  FERRY_CHECK(file, kIo, "cannot open {}: {}", path.string(), system_message());
  // Some network file systems refuse to sync a folder; they order a rename after the data themselves.
  const bool done = ::fsync(file.get()) == 0 || errno == EINVAL;
  FERRY_CHECK(done, kIo, "cannot write {} to the disk: {}", path.string(), system_message());
}

}  // namespace ferry
