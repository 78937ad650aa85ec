// SPDX-License-Identifier: Apache-2.0
// A seeded permutation computed by index, so that shuffling needs no table and resuming no replay.
// Source: Black & Rogaway 2002, "Ciphers with arbitrary finite domains", section 3 and 4: a Feistel network on the next
// power of four, walked until it lands inside the domain; round function: Philox.
#pragma once

#include <array>
#include <cstdint>

namespace ferry {

class Permutation {
 public:
  /// Of [0, size), size >= 1; another one for each (seed, epoch).
  Permutation(std::int64_t size, std::uint64_t seed, std::int64_t epoch);

  /// The element at `index`; every element occurs once. Expected cost: at most four walks of eight Philox blocks.
  std::int64_t operator()(std::int64_t index) const;

 private:
  std::uint64_t encrypt(std::uint64_t value) const;

  std::uint64_t size_;
  int half_bits_;
  std::array<std::uint32_t, 2> key_;
  std::uint64_t epoch_;
};

}  // namespace ferry
