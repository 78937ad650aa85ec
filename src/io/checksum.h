// SPDX-License-Identifier: Apache-2.0
// A 128-bit checksum of a stream of bytes, fast enough to go along with every write.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

namespace ferry {

/// XXH3, 128 bits: finds damage, not forgery. `xxh128sum FILE` prints the same text.
/// Source: https://github.com/Cyan4973/xxHash, doc/xxhash_spec.md.
class Checksum {
 public:
  Checksum();
  ~Checksum();
  Checksum(const Checksum&) = delete;
  Checksum& operator=(const Checksum&) = delete;

  void add(std::span<const std::byte> bytes);
  /// Of all bytes so far: 32 hexadecimal digits.
  std::string text() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// What a file holds, in brief.
struct FileDigest {
  std::int64_t size_bytes = 0;
  std::string checksum;  // as Checksum::text()

  bool operator==(const FileDigest&) const = default;
};

/// The size, and the checksum of 64 blocks of 16 KiB spread evenly from the first byte to the last: 64 reads, however
/// large the file. Up to 1 MiB these are all bytes; beyond, a change of fewer bytes than 1/63 of the size may lie
/// between two blocks and stay unseen.
FileDigest sampled_digest(std::span<const std::byte> bytes);

/// Reads the whole file by mapping. Throws Error{kIo}.
FileDigest digest_of(const std::filesystem::path& file);

}  // namespace ferry
