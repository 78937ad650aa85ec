// SPDX-License-Identifier: Apache-2.0
// The draws of stochastic rounding: balanced bits, no correlation, and what names them. All bounds are five
// standard deviations of fixed sequences, so that a result does not change from run to run.
#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "catch.h"
#include "optim/adamw.h"
#include "optim/adamw_kernels.h"

namespace ferry {
namespace {

using detail::Draws;
using detail::rounding_draws;

constexpr std::int64_t kDraws = 1 << 18;

using Sequence = std::vector<std::uint32_t>;

struct Sequences {
  Sequence weight, m, v;
};

Sequences draw(const NoiseKey& key, std::uint32_t first = 0) {
  Sequences all;
  for (std::uint32_t i = 0; i < kDraws; ++i) {
    const Draws draws = rounding_draws(key, first + i);
    all.weight.push_back(draws.weight);
    all.m.push_back(draws.m);
    all.v.push_back(draws.v);
  }
  return all;
}

NoiseKey key_of(std::uint64_t seed, std::int64_t step, std::int64_t parameter) {
  AdamwScalars scalars;
  scalars.seed = seed;
  scalars.step = step;
  return adamw_noise_key(scalars, parameter);
}

/// Standard deviations by which the mean, or any bit, is off.
double imbalance(const Sequence& values) {
  const auto n = static_cast<double>(values.size());
  double sum = 0;
  std::array<double, 16> ones{};
  for (const std::uint32_t value : values) {
    sum += value;
    for (std::size_t bit = 0; bit < 16; ++bit) ones[bit] += (value >> bit) & 1U;
  }
  double worst = std::abs(sum / n - 32767.5) / (65536 / std::sqrt(12 * n));
  for (const double count : ones) worst = std::max(worst, std::abs(count - n / 2) / std::sqrt(n / 4));
  return worst;
}

/// Standard deviations by which two sequences are correlated as numbers; the second one begins `lag` later.
double number_correlation(const Sequence& a, const Sequence& b, std::size_t lag = 0) {
  double sum = 0;
  for (std::size_t i = 0; i + lag < a.size(); ++i) sum += (a[i] - 32767.5) * (b[i + lag] - 32767.5);
  return std::abs(sum) * 12 / (65536.0 * 65536.0 * std::sqrt(static_cast<double>(a.size() - lag)));
}

/// The same, or for any bit of one and the same bit of the other.
double correlation(const Sequence& a, const Sequence& b, std::size_t lag = 0) {
  Sequence different;
  for (std::size_t i = 0; i + lag < a.size(); ++i) different.push_back(a[i] ^ b[i + lag]);
  return std::max(number_correlation(a, b, lag), imbalance(different));
}

double correlation(const Sequences& a, const Sequences& b) {
  return std::max({correlation(a.weight, b.weight), correlation(a.m, b.m), correlation(a.v, b.v),
                   correlation(a.weight, b.m), correlation(a.m, b.v), correlation(a.v, b.weight)});
}

constexpr double kMany = 5;

TEST_CASE("each draw has a fair mean and fair bits, for many keys") {
  for (std::int64_t parameter = 0; parameter < 8; ++parameter) {
    const Sequences draws = draw(key_of(2024, 1, parameter));
    INFO("parameter " << parameter);
    CHECK(imbalance(draws.weight) < kMany);
    CHECK(imbalance(draws.m) < kMany);
    CHECK(imbalance(draws.v) < kMany);
  }
}

TEST_CASE("draws fill their range evenly") {
  const Sequences draws = draw(key_of(2024, 1, 0));
  for (const Sequence* values : {&draws.weight, &draws.m, &draws.v}) {
    std::vector<double> counts(1024);
    for (const std::uint32_t value : *values) ++counts[value >> 6];
    double chi_square = 0;
    for (const double count : counts) chi_square += std::pow(count - kDraws / 1024.0, 2) / (kDraws / 1024.0);
    CHECK(std::abs(chi_square - 1023) < kMany * std::sqrt(2 * 1023.0));
  }
}

TEST_CASE("the three draws of an element are not correlated") {
  const Sequences draws = draw(key_of(2024, 7, 1));
  CHECK(correlation(draws.weight, draws.m) < kMany);
  CHECK(correlation(draws.weight, draws.v) < kMany);
  CHECK(correlation(draws.m, draws.v) < kMany);
}

TEST_CASE("the draws of neighbours, near and far, are not correlated") {
  const Sequences draws = draw(key_of(2024, 7, 2));
  for (const std::size_t lag : {1U, 2U, 3U, 8U, 16U, 32U, 2048U, 4096U, 65536U}) {
    INFO("lag " << lag);
    CHECK(correlation(draws.weight, draws.weight, lag) < kMany);
    CHECK(correlation(draws.m, draws.m, lag) < kMany);
    CHECK(correlation(draws.v, draws.v, lag) < kMany);
    CHECK(correlation(draws.m, draws.v, lag) < kMany);
    CHECK(correlation(draws.v, draws.weight, lag) < kMany);
  }
}

TEST_CASE("the draws of other parameters, steps and seeds are not correlated") {
  const Sequences draws = draw(key_of(2024, 1, 0));
  for (const std::int64_t parameter : {1, 2, 145}) CHECK(correlation(draws, draw(key_of(2024, 1, parameter))) < kMany);
  for (const std::int64_t step : {2, 3, 1000}) CHECK(correlation(draws, draw(key_of(2024, step, 0))) < kMany);
  for (const std::uint64_t seed : {0U, 2025U}) CHECK(correlation(draws, draw(key_of(seed, 1, 0))) < kMany);
}

// With equal sums of element and key.first all that differs enters between the rounds of the hash. The lowest bits then
// depend on each other; they weigh next to nothing.
TEST_CASE("two keys with a common first half make sequences that are not correlated") {
  const NoiseKey key = key_of(2024, 1, 0);
  const Sequences draws = draw(key);
  for (const std::int64_t step : {2, 3, 4, 5}) {
    const Sequences other = draw({key.first - 12345U, key_of(2024, step, 0).second}, 12345U);
    CHECK(number_correlation(draws.weight, other.weight) < kMany);
    CHECK(number_correlation(draws.m, other.m) < kMany);
    CHECK(number_correlation(draws.v, other.v) < kMany);
  }
}

TEST_CASE("an average over steps tends to the middle for each element") {
  constexpr int kSteps = 400;
  constexpr std::uint32_t kElems = 500;
  double worst = 0;
  for (std::uint32_t i = 0; i < kElems; ++i) {
    double sum = 0;
    for (int step = 1; step <= kSteps; ++step) sum += rounding_draws(key_of(1, step, 0), i).weight - 32767.5;
    worst = std::max(worst, std::abs(sum) / (65536 * std::sqrt(kSteps / 12.0)));
  }
  CHECK(worst < kMany);
}

TEST_CASE("draws are those of a seed, step, parameter and element, on every machine and in every version") {
  const NoiseKey key = key_of(2024, 3, 17);
  const Draws draws = rounding_draws(key, 123456789U);
  CHECK(key.first == 0xcde60d55U);
  CHECK(key.second == 0x20130490U);
  CHECK(draws.weight == 0xe853U);
  CHECK(draws.m == 0x8f3aU);
  CHECK(draws.v == 0xe55dU);
}

}  // namespace
}  // namespace ferry
