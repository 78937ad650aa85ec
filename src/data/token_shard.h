// SPDX-License-Identifier: Apache-2.0
// Files of token ids: ferry's shards, raw integers, or the bytes of any file.
//
// A shard is a 32-byte header and the ids, all little-endian:
//   byte 0   "FERRYTOK"
//   byte 8   u32 version (1)
//   byte 12  u32 bytes per id (2 or 4)
//   byte 16  u64 vocabulary size
//   byte 24  u64 number of ids
// An optional mask lies beside it as PATH.mask: one byte per id, 0 = never a target of the loss.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "io/checksum.h"
#include "io/mapped_file.h"

namespace ferry {

/// kAuto: a name that ends in .txt is bytes, any other a shard.
enum class TokenFormat { kAuto, kShard, kRawU16, kRawU32, kBytes };

struct TokenSource {
  std::filesystem::path path;
  TokenFormat format = TokenFormat::kAuto;
};

/// The format itself, where it is kAuto that of the name.
TokenFormat format_of(const TokenSource& source);

/// Tells other content of a token file from the same: sampled_digest() of it and of its mask.
struct DataFingerprint {
  FileDigest tokens;
  std::string mask;  // checksum; empty without a mask

  bool operator==(const DataFingerprint&) const = default;
};

/// One mapped file of tokens. Copies nothing; move-only.
class TokenShard {
 public:
  /// Throws Error{kIo}: unreadable, empty, wrong magic (or the magic, where raw ids are expected), version or id width,
  /// a size that does not match the count, a mask of another length.
  explicit TokenShard(const TokenSource& source);

  const std::filesystem::path& path() const { return tokens_file_.path(); }
  std::int64_t size() const { return n_tokens_; }
  /// Of the header, 256 for bytes, 0 = unknown for raw files.
  std::int64_t vocab_size() const { return vocab_size_; }
  bool has_mask() const { return mask_file_.has_value(); }

  /// Ids [first, first + out.size()), which must exist. An id may exceed the vocabulary: the caller checks.
  void read(std::int64_t first, std::span<std::uint32_t> out) const;
  /// Whether the token may be a target; true without a mask.
  bool is_target(std::int64_t index) const;
  /// Reads at most 1 MiB of each file.
  DataFingerprint fingerprint() const;
  /// Whether any of the tokens [first, first + n) may be, n >= 1. Reads up to the first one.
  bool any_target(std::int64_t first, std::int64_t n) const;

 private:
  bool has_magic() const;
  void read_header();
  void set_raw(int token_bytes, std::string_view format_name);
  void open_mask();

  MappedFile tokens_file_;
  std::optional<MappedFile> mask_file_;
  std::int64_t n_tokens_ = 0;
  std::int64_t vocab_size_ = 0;
  std::int64_t data_offset_bytes_ = 0;
  int token_bytes_ = 0;  // 1, 2 or 4
};

enum class TokenWidth { kU16 = 2, kU32 = 4 };

/// Writes a shard that appears when complete. Throws Error{kIo}: no tokens, a vocabulary that the width cannot hold, a
/// token outside of the vocabulary (with its position), or the file cannot be written.
void write_token_shard(const std::filesystem::path& path, TokenWidth width, std::int64_t vocab_size,
                       std::span<const std::uint32_t> tokens);

}  // namespace ferry
