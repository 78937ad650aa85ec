// SPDX-License-Identifier: Apache-2.0
// Division rounded up, and multiples.
#include "core/int_math.h"

#include "catch.h"

namespace ferry {

TEST_CASE("a division is rounded up to the next whole number") {
  CHECK(ceil_div(0, 3) == 0);
  CHECK(ceil_div(1, 3) == 1);
  CHECK(ceil_div(3, 3) == 1);
  CHECK(ceil_div(4, 3) == 2);
  CHECK(ceil_div((std::int64_t{1} << 40) + 1, 2) == (std::int64_t{1} << 39) + 1);
}

TEST_CASE("a count is rounded up to a multiple") {
  CHECK(round_up(0, 16) == 0);
  CHECK(round_up(1, 16) == 16);
  CHECK(round_up(16, 16) == 16);
  CHECK(round_up(17, 16) == 32);
}

}  // namespace ferry
