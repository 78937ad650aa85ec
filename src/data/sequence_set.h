// SPDX-License-Identifier: Apache-2.0
// Token shards cut into training sequences.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/tokens.h"
#include "data/token_shard.h"

namespace ferry {

/// Non-overlapping sequences of seq_len + 1 tokens, shard after shard. A sequence never crosses shards: the tail of a
/// shard that is shorter than a sequence is not used.
class SequenceSet {
 public:
  /// Opens the shards. Throws Error{kIo}: as TokenShard; no source; no shard holds a whole sequence; a shard whose
  /// vocabulary exceeds the model's. `seq_len` >= 1 and `vocab_size` >= 1, else Error{kConfig}.
  SequenceSet(const std::vector<TokenSource>& sources, std::int64_t seq_len, std::int64_t vocab_size);

  std::int64_t seq_len() const { return seq_len_; }
  std::int64_t n_sequences() const { return n_sequences_; }
  /// Of all shards, tails included.
  std::int64_t n_tokens() const { return n_tokens_; }
  /// Of each source.
  std::vector<DataFingerprint> fingerprints() const;

  /// Throws Error{kConfig} naming `option`, whose files these are, and the masks when no target of any sequence counts.
  /// Reads the masks up to the first one that does.
  void check_any_target(std::string_view option) const;

  /// Sequence `index`: inputs are its first seq_len tokens, targets its last, kIgnoreIndex where masked; both have
  /// seq_len elements. Returns the number of targets that count.
  /// Throws Error{kIo} with shard and position for a token outside of the vocabulary.
  std::int64_t read(std::int64_t index, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) const;

 private:
  bool has_target(const TokenShard& shard) const;

  std::vector<TokenShard> shards_;
  std::vector<std::int64_t> first_sequence_;  // per shard: index of its first sequence
  std::int64_t seq_len_;
  std::int64_t vocab_size_;
  std::int64_t n_sequences_ = 0;
  std::int64_t n_tokens_ = 0;
};

}  // namespace ferry
