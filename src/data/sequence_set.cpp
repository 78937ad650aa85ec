// SPDX-License-Identifier: Apache-2.0
// Sequence numbering and checks of token values.
#include "data/sequence_set.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <string>

#include "core/error.h"
#include "data/byte_vocabulary.h"
#include "io/printable.h"

namespace ferry {
namespace {

/// "'a.mask', 'b.mask' and 7 more"
std::string list_masks(const std::vector<TokenShard>& shards) {
  constexpr std::size_t kMostNames = 3;
  std::vector<std::string> names;
  for (const TokenShard& shard : shards) {
    if (shard.has_mask()) names.push_back(fmt::format("'{}.mask'", printable_name(shard.path().string())));
  }
  const std::size_t n_shown = std::min(names.size(), kMostNames);
  const std::string rest = names.size() > n_shown ? fmt::format(" and {} more", names.size() - n_shown) : "";
  return fmt::format("{}{}", fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(n_shown), ", "),
                     rest);
}

}  // namespace

SequenceSet::SequenceSet(const std::vector<TokenSource>& sources, std::int64_t seq_len, std::int64_t vocab_size)
    : seq_len_(seq_len), vocab_size_(vocab_size) {
  FERRY_CHECK(seq_len >= 1 && seq_len < INT32_MAX, kConfig, "seq_len is {}, expected 1 to 2147483646", seq_len);
  FERRY_CHECK(vocab_size >= 1 && vocab_size <= INT32_MAX, kConfig, "vocab_size is {}, expected 1 to 2147483647",
              vocab_size);
  FERRY_CHECK(!sources.empty(), kIo, "no token files given");
  std::int64_t longest = 0;
  for (const TokenSource& source : sources) {
    const TokenShard& shard = shards_.emplace_back(source);
    FERRY_CHECK(shard.vocab_size() <= vocab_size, kIo, "{} has a vocabulary of {}, the model one of {}",
                shard.path().string(), shard.vocab_size(), vocab_size);
    const bool guessed = source.format == TokenFormat::kAuto && format_of(source) == TokenFormat::kBytes;
    FERRY_CHECK(
        !guessed || vocab_size == kByteVocabularySize, kIo,
        "{} would be read as bytes, of which there are {}, and the model has a vocabulary of {}: give ids of "
        "the model's tokenizer (a token shard, or data_format u16 or u32), or data_format = bytes to take bytes",
        shard.path().string(), kByteVocabularySize, vocab_size);
    first_sequence_.push_back(n_sequences_);
    n_sequences_ += shard.size() / (seq_len + 1);
    n_tokens_ += shard.size();
    longest = std::max(longest, shard.size());
  }
  FERRY_CHECK(n_sequences_ > 0, kIo,
              "{}: too few tokens for one sequence: seq_len {} takes {}, the longest file has {}: lower seq_len",
              shards_.front().path().string(), seq_len, seq_len + 1, longest);
}

std::vector<DataFingerprint> SequenceSet::fingerprints() const {
  std::vector<DataFingerprint> fingerprints;
  for (const TokenShard& shard : shards_) fingerprints.push_back(shard.fingerprint());
  return fingerprints;
}

bool SequenceSet::has_target(const TokenShard& shard) const {
  for (std::int64_t first = 0; first < shard.size() - seq_len_; first += seq_len_ + 1) {
    if (shard.any_target(first + 1, seq_len_)) return true;
  }
  return false;
}

void SequenceSet::check_any_target(std::string_view option) const {
  const bool found = std::ranges::any_of(shards_, [this](const TokenShard& shard) { return has_target(shard); });
  FERRY_CHECK(
      found, kConfig,
      "{} holds no valid target: every token that its {} sequences predict is masked (0) in {}: expected another "
      "byte for those that count; change the mask, or remove it to count all",
      option, n_sequences_, list_masks(shards_));
}

std::int64_t SequenceSet::read(std::int64_t index, std::span<std::int32_t> inputs,
                               std::span<std::int32_t> targets) const {
  FERRY_ASSERT(index >= 0 && index < n_sequences_);
  const auto n_inputs = static_cast<std::size_t>(seq_len_);
  FERRY_ASSERT(inputs.size() == n_inputs && targets.size() == n_inputs);
  // The last shard that begins at or before `index`: shards without a sequence share their first index with the next.
  const auto next = std::ranges::upper_bound(first_sequence_, index);
  const auto shard_index = static_cast<std::size_t>(next - first_sequence_.begin() - 1);
  const TokenShard& shard = shards_[shard_index];
  const std::int64_t first = (index - first_sequence_[shard_index]) * (seq_len_ + 1);

  std::vector<std::uint32_t> tokens(n_inputs + 1);
  shard.read(first, tokens);
  const auto limit = static_cast<std::uint32_t>(vocab_size_);
  const auto bad = std::ranges::find_if(tokens, [limit](std::uint32_t token) { return token >= limit; });
  FERRY_CHECK(bad == tokens.end(), kIo, "{}: token {} at position {} is outside of the model's vocabulary of {}",
              shard.path().string(), *bad, first + (bad - tokens.begin()), vocab_size_);

  std::int64_t n_valid = 0;
  for (std::size_t i = 0; i < n_inputs; ++i) {
    const bool counts = shard.is_target(first + static_cast<std::int64_t>(i) + 1);
    inputs[i] = static_cast<std::int32_t>(tokens[i]);
    targets[i] = counts ? static_cast<std::int32_t>(tokens[i + 1]) : kIgnoreIndex;
    n_valid += counts ? 1 : 0;
  }
  return n_valid;
}

}  // namespace ferry
