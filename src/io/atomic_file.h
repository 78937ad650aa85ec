// SPDX-License-Identifier: Apache-2.0
// A file that appears under its name only when complete.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

#include "io/checksum.h"
#include "io/posix_file.h"

namespace ferry {

/// Writes a temporary file beside `destination`; commit() makes it durable and renames it into place, replacing a file
/// of that name, but neither a folder nor a pipe or device. Destroyed before commit(), it leaves the old file
/// untouched. Errors: Error{kIo}.
class AtomicFile {
 public:
  explicit AtomicFile(const std::filesystem::path& destination);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  const std::filesystem::path& destination() const { return destination_; }

  void write(std::span<const std::byte> bytes);
  /// Of what has been written so far.
  FileDigest digest() const { return {size_bytes_, checksum_.text()}; }

  /// Blocks until the bytes are on the disk. At most once; nothing may be written afterwards.
  void commit();

 private:
  std::filesystem::path destination_;
  std::filesystem::path temporary_;
  FileDescriptor file_;
  std::int64_t size_bytes_ = 0;
  Checksum checksum_;
};

/// Throws as AtomicFile does where no file can be created, before long work whose end is one. Leaves nothing there, so
/// that nothing stays when the work is interrupted.
void check_writable(const std::filesystem::path& destination);

/// Blocks until it is on the disk.
FileDigest write_file_atomically(const std::filesystem::path& destination, std::string_view content);

}  // namespace ferry
