// SPDX-License-Identifier: Apache-2.0
// Feistel rounds and cycle walking.
#include "data/permutation.h"

#include <algorithm>
#include <bit>

#include "core/error.h"
#include "core/rng.h"

namespace ferry {
namespace {

// Four rounds of a random function suffice in theory for large domains; small ones mix slower.
constexpr std::uint32_t kRounds = 8;

std::uint32_t low_half(std::uint64_t value) { return static_cast<std::uint32_t>(value); }
std::uint32_t high_half(std::uint64_t value) { return static_cast<std::uint32_t>(value >> 32); }

}  // namespace

Permutation::Permutation(std::int64_t size, std::uint64_t seed, std::int64_t epoch)
    : size_(static_cast<std::uint64_t>(size)),
      key_{low_half(seed), high_half(seed)},
      epoch_(static_cast<std::uint64_t>(epoch)) {
  FERRY_ASSERT(size >= 1);
  half_bits_ = std::max(1, static_cast<int>(std::bit_width(size_ - 1) + 1) / 2);
}

std::uint64_t Permutation::encrypt(std::uint64_t value) const {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  std::uint64_t left = value >> half_bits_;
  std::uint64_t right = value & mask;
  for (std::uint32_t round = 0; round < kRounds; ++round) {
    const auto words = philox4x32({low_half(right), round, low_half(epoch_), high_half(epoch_)}, key_);
    const std::uint64_t next = (left ^ words[0]) & mask;
    left = right;
    right = next;
  }
  return left << half_bits_ | right;
}

std::int64_t Permutation::operator()(std::int64_t index) const {
  FERRY_ASSERT(index >= 0 && static_cast<std::uint64_t>(index) < size_);
  auto value = static_cast<std::uint64_t>(index);
  do {
    value = encrypt(value);
  } while (value >= size_);
  return static_cast<std::int64_t>(value);
}

}  // namespace ferry
