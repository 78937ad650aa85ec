// SPDX-License-Identifier: Apache-2.0
#include "data/bpe_merges.h"

#include "catch.h"

namespace ferry {
namespace {

using Ids = std::vector<std::int32_t>;

TEST_CASE("the earliest merge goes first, wherever it fits") {
  BpeMerges merges;
  CHECK(merges.empty());
  merges.add(2, 3, 23);
  merges.add(1, 2, 12);
  merges.add(12, 3, 123);
  merges.add(1, 23, 99);
  CHECK_FALSE(merges.empty());
  CHECK(merges.apply({1, 2, 3}) == Ids{99});
  CHECK(merges.apply({1, 2, 4}) == Ids{12, 4});
  CHECK(merges.apply({4, 4}) == Ids{4, 4});
  CHECK(merges.apply({1}) == Ids{1});
  CHECK(merges.apply({}).empty());
}

TEST_CASE("of equal pairs the leftmost is joined, and overlaps are not") {
  BpeMerges merges;
  merges.add(1, 1, 11);
  CHECK(merges.apply({1, 1, 1}) == Ids{11, 1});
  merges.add(11, 11, 1111);
  CHECK(merges.apply({1, 1, 1, 1, 1}) == Ids{1111, 1});
}

TEST_CASE("a pair keeps its first rule") {
  BpeMerges merges;
  merges.add(1, 2, 12);
  merges.add(1, 2, 13);
  CHECK(merges.apply({1, 2}) == Ids{12});
}

TEST_CASE("long texts merge in good time") {
  BpeMerges merges;
  merges.add(1, 1, 2);
  merges.add(2, 2, 3);
  CHECK(merges.apply(Ids(400'000, 1)) == Ids(100'000, 3));
}

}  // namespace
}  // namespace ferry
