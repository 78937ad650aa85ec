// SPDX-License-Identifier: Apache-2.0
// Philox known answers (Random123's kat_vectors) and the distributions drawn from it.
#include "core/rng.h"

#include <cmath>

#include "catch.h"

using namespace ferry;

using Words = std::array<std::uint32_t, 4>;

TEST_CASE("philox4x32-10 gives the known answers of its authors") {
  CHECK(philox4x32({0, 0, 0, 0}, {0, 0}) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  const std::uint32_t ones = 0xffffffff;
  CHECK(philox4x32({ones, ones, ones, ones}, {ones, ones}) == Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("a counter stream depends on seed, name and index alone") {
  const CounterRng rng(7, "layers.0.weight");
  const std::uint32_t tenth = rng.bits(10);
  rng.bits(3);
  CHECK(rng.bits(10) == tenth);
  CHECK(CounterRng(7, "layers.0.weight").bits(10) == tenth);
  CHECK(CounterRng(8, "layers.0.weight").bits(10) != tenth);
  CHECK(CounterRng(7, "layers.1.weight").bits(10) != tenth);
  CHECK(rng.bits(11) != tenth);
  CHECK(rng.bits(10 + (1ULL << 32)) != tenth);  // the whole 64-bit index counts
  CHECK(CounterRng(7 + (1ULL << 32), "layers.0.weight").bits(10) != tenth);
}

TEST_CASE("uniform numbers lie between 0 and 1, without 1, and fill the range evenly") {
  const CounterRng rng(1, "uniform");
  std::array<int, 10> counts{};
  bool inside = true;
  for (std::uint64_t i = 0; i < 100000; ++i) {
    const float value = rng.uniform(i);
    inside = inside && value >= 0 && value < 1;
    if (inside) ++counts[static_cast<std::size_t>(value * 10)];
  }
  REQUIRE(inside);
  for (const int count : counts) CHECK(std::abs(count - 10000) < 500);  // 5 standard deviations
}

TEST_CASE("normal numbers are finite and have mean 0, variance 1 and kurtosis 3") {
  const CounterRng rng(2, "normal");
  const int n = 200000;
  double sum = 0, squares = 0, fourth = 0;
  for (int i = 0; i < n; ++i) {
    const double value = rng.normal(static_cast<std::uint64_t>(i));
    sum += value;
    squares += value * value;
    fourth += value * value * value * value;
  }
  REQUIRE(std::isfinite(fourth));
  CHECK(std::abs(sum / n) < 0.012);  // bounds: 5 standard deviations of each estimate
  CHECK(std::abs(squares / n - 1) < 0.016);
  CHECK(std::abs(fourth / n - 3) < 0.11);
}
