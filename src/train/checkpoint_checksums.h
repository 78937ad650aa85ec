// SPDX-License-Identifier: Apache-2.0
// The checksums that a checkpoint keeps of its files, for whoever reads one of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "io/checksum.h"
#include "io/safetensors.h"

namespace ferry {

/// What checksums.xxh128 says.
class CheckpointChecksums {
 public:
  /// Throws Error{kIo}: missing, damaged, or without a file that every checkpoint has.
  explicit CheckpointChecksums(const std::filesystem::path& folder);
  /// Nothing where the folder has none, as those from Hugging Face and of `ferry export`.
  static std::optional<CheckpointChecksums> find(const std::filesystem::path& folder);

  const std::map<std::string, std::string>& by_name() const { return by_name_; }

  /// Reads the whole file, one of by_name(). Throws Error{kIo} naming it: missing, or other bytes than were written.
  /// `size_bytes` < 0 is not compared.
  void check_file(const std::string& name, std::int64_t size_bytes = -1) const;

 private:
  std::filesystem::path folder_;
  std::map<std::string, std::string> by_name_;  // 32 hexadecimal digits
};

/// Compares a file with its checksum while its bytes are read anyway. Each is hashed once, just before it is used, so
/// that it comes from the disk once: the cost is a pass of XXH3 over bytes that are in the cache, 20 GB/s on a core of
/// a server (AMD EPYC, `ferry inspect --checksums`). Bytes may be used in any order: those before them are hashed
/// ahead.
class ReadAlongCheck {
 public:
  /// `file` outlives this object.
  ReadAlongCheck(const SafetensorsFile& file, std::string checksum);

  /// Call before bytes of the file up to `end` are used.
  void reach(const std::byte* end);
  /// Reads what has not been used, too. Throws Error{kIo} naming the file when its bytes are not those written.
  void finish();

 private:
  const SafetensorsFile& file_;
  std::string wanted_;
  Checksum checksum_;
  std::size_t hashed_bytes_ = 0;
};

}  // namespace ferry
