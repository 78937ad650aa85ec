// SPDX-License-Identifier: Apache-2.0
#include "data/permutation.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "catch.h"

namespace ferry {
namespace {

std::vector<std::int64_t> order_of(std::int64_t size, std::uint64_t seed, std::int64_t epoch) {
  const Permutation permutation(size, seed, epoch);
  std::vector<std::int64_t> order;
  for (std::int64_t i = 0; i < size; ++i) order.push_back(permutation(i));
  return order;
}

bool is_permutation_of_range(std::vector<std::int64_t> order) {
  std::ranges::sort(order);
  std::vector<std::int64_t> range(order.size());
  std::iota(range.begin(), range.end(), 0);
  return order == range;
}

TEST_CASE("every element occurs once, whatever the size and epoch") {
  for (std::int64_t size = 1; size <= 70; ++size) {
    for (std::int64_t epoch = 0; epoch < 4; ++epoch) CHECK(is_permutation_of_range(order_of(size, 1, epoch)));
  }
  for (const std::int64_t size : {1023, 1024, 1025, 65537}) CHECK(is_permutation_of_range(order_of(size, 2, 1)));
}

TEST_CASE("the order depends on seed and epoch alone") {
  CHECK(order_of(1000, 1, 0) == order_of(1000, 1, 0));
  CHECK(order_of(1000, 1, 0) != order_of(1000, 1, 1));
  CHECK(order_of(1000, 1, 0) != order_of(1000, 2, 0));
  CHECK(order_of(1000, 1, 0) != order_of(1000, 1 + (1ULL << 32), 0));
  CHECK(order_of(1000, 1, 0) != order_of(1000, 1, 1LL << 32));
}

TEST_CASE("the order looks random") {
  // Mean of 2,000 epochs of the element at each of 6 places: 2.5 +- 5 standard errors of a uniform choice.
  constexpr int kEpochs = 2000;
  for (std::int64_t place = 0; place < 6; ++place) {
    double sum = 0;
    for (std::int64_t epoch = 0; epoch < kEpochs; ++epoch) sum += static_cast<double>(Permutation(6, 3, epoch)(place));
    CHECK(std::abs(sum / kEpochs - 2.5) < 5 * 1.708 / 44.7);
  }
  // Few elements keep their place or their neighbour: one of each is expected.
  const std::vector<std::int64_t> order = order_of(10'000, 4, 0);
  int n_fixed = 0;
  int n_followed = 0;
  for (std::size_t i = 0; i + 1 < order.size(); ++i) {
    n_fixed += order[i] == static_cast<std::int64_t>(i) ? 1 : 0;
    n_followed += order[i + 1] == order[i] + 1 ? 1 : 0;
  }
  CHECK(n_fixed < 8);
  CHECK(n_followed < 8);
}

TEST_CASE("sizes beyond 32 bits work") {
  const std::int64_t size = (1LL << 40) + 1;
  const Permutation permutation(size, 5, 0);
  std::vector<std::int64_t> values;
  for (std::int64_t i = 0; i < 1000; ++i) values.push_back(permutation(size - 1 - i));
  CHECK(std::ranges::all_of(values, [size](std::int64_t value) { return value >= 0 && value < size; }));
  CHECK(std::ranges::any_of(values, [](std::int64_t value) { return value > 1LL << 39; }));
  std::ranges::sort(values);
  CHECK(std::ranges::adjacent_find(values) == values.end());
}

}  // namespace
}  // namespace ferry
