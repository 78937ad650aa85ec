// SPDX-License-Identifier: Apache-2.0
// A whole file mapped read-only into memory.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

namespace ferry {

/// Move-only owner of the mapping; bytes() keeps its address when moved. The size is taken once, when opened:
/// a file that another process shortens afterwards must not be read further.
class MappedFile {
 public:
  /// Throws Error{kIo}: cannot be opened, or is no regular file (a pipe or device is refused, never waited for).
  explicit MappedFile(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  const std::filesystem::path& path() const { return path_; }
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::filesystem::path path_;
  std::span<const std::byte> bytes_;
};

/// Throws Error{kIo} as MappedFile, and for a file of more than `most_bytes`, which is not read.
std::string read_whole_file(const std::filesystem::path& path, std::size_t most_bytes);

}  // namespace ferry
