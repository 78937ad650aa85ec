// SPDX-License-Identifier: Apache-2.0
// Small owners and helpers over POSIX files, used by the other sources of this folder.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <utility>

namespace ferry {

/// Owns a file descriptor; move-only.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void reset() noexcept;

 private:
  int fd_ = -1;
};

/// The text of `errno`.
std::string system_message();

/// ".NAME.tmp-PID-COUNTER" beside `path`; a new name at each call.
std::filesystem::path temporary_sibling(const std::filesystem::path& path);

/// Writes all of `bytes`, however many calls that takes. Throws Error{kIo} naming `path`.
void write_all(const FileDescriptor& file, std::span<const std::byte> bytes, const std::filesystem::path& path);

/// Blocks until the file's (or folder's) content is on the disk. Throws Error{kIo}.
void sync_to_disk(const std::filesystem::path& path);

}  // namespace ferry
