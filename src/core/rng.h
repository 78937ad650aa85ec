// SPDX-License-Identifier: Apache-2.0
// Counter-based random numbers: the value depends on (key, counter) alone, never on threads or call order.
// Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", Philox4x32-10.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace ferry {

/// Four independent 32-bit words for a 128-bit counter under a 64-bit key.
std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key);

/// A stream of numbers named by (seed, name); element i is the same whatever else was drawn.
class CounterRng {
 public:
  CounterRng(std::uint64_t seed, std::string_view name);

  /// Uniform 32 bits.
  std::uint32_t bits(std::uint64_t index) const;
  /// Uniform in [0, 1), 24 bits of resolution.
  float uniform(std::uint64_t index) const;
  /// Standard normal (Box-Muller on the two halves of one counter block), computed in f64.
  float normal(std::uint64_t index) const;

 private:
  std::array<std::uint32_t, 4> block(std::uint64_t index) const;

  std::array<std::uint32_t, 2> key_;
  std::uint64_t stream_;
};

}  // namespace ferry
