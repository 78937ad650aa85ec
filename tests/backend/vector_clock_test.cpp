// SPDX-License-Identifier: Apache-2.0
// What clocks learn from each other.
#include "backend/vector_clock.h"

#include "catch.h"

using namespace ferry;

TEST_CASE("a clock knows its own work and, before it joins another, nothing else") {
  VectorClock a, b;
  a.tick(0);
  b.tick(1);
  b.tick(1);
  CHECK(a.time(0) == 1);
  CHECK(b.time(1) == 2);
  CHECK(a.knows(0, 1));
  CHECK_FALSE(a.knows(1, 1));
  CHECK_FALSE(b.knows(0, 1));
}

TEST_CASE("a join teaches what the other knows at that time, and hands on what it heard from a third") {
  VectorClock a, b, c;
  a.tick(0);
  b.tick(1);
  CHECK(b.join(a));
  a.tick(0);
  CHECK(c.join(b));
  CHECK(c.knows(0, 1));
  CHECK(c.knows(1, 1));
  CHECK_FALSE(c.knows(0, 2));
}

TEST_CASE("a join says whether anything was new, and forgets nothing") {
  VectorClock a, b;
  a.tick(3);
  CHECK(b.join(a));
  b.tick(0);
  CHECK_FALSE(b.join(a));
  CHECK_FALSE(b.join(VectorClock()));
  CHECK(b.time(0) == 1);
  CHECK(b.time(3) == 1);
}
