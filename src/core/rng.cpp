// SPDX-License-Identifier: Apache-2.0
// Philox4x32-10 and the distributions drawn from it.
#include "core/rng.h"

#include <cmath>
#include <numbers>

namespace ferry {
namespace {

std::uint64_t fnv1a(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return hash;
}

std::uint32_t low_half(std::uint64_t value) { return static_cast<std::uint32_t>(value); }
std::uint32_t high_half(std::uint64_t value) { return static_cast<std::uint32_t>(value >> 32); }

}  // namespace

std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = 0xd2511f53ULL * counter[0];
    const std::uint64_t p1 = 0xcd9e8d57ULL * counter[2];
    counter = {high_half(p1) ^ counter[1] ^ key[0], low_half(p1), high_half(p0) ^ counter[3] ^ key[1], low_half(p0)};
    key[0] += 0x9e3779b9U;
    key[1] += 0xbb67ae85U;
  }
  return counter;
}

CounterRng::CounterRng(std::uint64_t seed, std::string_view name)
    : key_{low_half(seed), high_half(seed)}, stream_(fnv1a(name)) {}

std::array<std::uint32_t, 4> CounterRng::block(std::uint64_t index) const {
  return philox4x32({low_half(index), high_half(index), low_half(stream_), high_half(stream_)}, key_);
}

std::uint32_t CounterRng::bits(std::uint64_t index) const { return block(index)[0]; }

float CounterRng::uniform(std::uint64_t index) const { return static_cast<float>(bits(index) >> 8) * 0x1.0p-24F; }

float CounterRng::normal(std::uint64_t index) const {
  const auto words = block(index);
  const double u1 = (static_cast<double>(words[0]) + 1.0) * 0x1.0p-32;  // (0, 1]
  const double u2 = static_cast<double>(words[1]) * 0x1.0p-32;
  return static_cast<float>(std::sqrt(-2.0 * std::log(u1)) * std::cos(2.0 * std::numbers::pi * u2));
}

}  // namespace ferry
