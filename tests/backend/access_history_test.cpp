// SPDX-License-Identifier: Apache-2.0
// Which accesses conflict, and what a history keeps of them.
#include "backend/access_history.h"

#include "catch.h"

using namespace ferry;

namespace {

/// Actors with clocks that access one allocation.
class Actors {
 public:
  /// Actor that conflicts, or -1.
  int read(std::size_t actor, std::size_t begin, std::size_t end) { return add(actor, false, begin, end); }
  int write(std::size_t actor, std::size_t begin, std::size_t end) { return add(actor, true, begin, end); }
  void order(std::size_t before, std::size_t after) { clocks_[after].join(clocks_[before]); }
  std::size_t n_ranges() const { return history_.n_ranges(); }

 private:
  int add(std::size_t actor, bool writes, std::size_t begin, std::size_t end) {
    VectorClock& clock = clocks_[actor];
    clock.tick(actor);
    TracedAccess access;
    access.actor = actor;
    access.time = clock.time(actor);
    access.writes = writes;
    access.begin = begin;
    access.end = end;
    const auto other = history_.add(access, clock);
    return other ? static_cast<int>(other->actor) : -1;
  }

  AccessHistory history_;
  VectorClock clocks_[4];
};

}  // namespace

TEST_CASE("two accesses conflict when they overlap, are not ordered, and one of them writes") {
  Actors actors;
  SECTION("write, write") {
    CHECK(actors.write(0, 10, 20) == -1);
    CHECK(actors.write(1, 19, 30) == 0);
  }
  SECTION("write, read") {
    CHECK(actors.write(0, 10, 20) == -1);
    CHECK(actors.read(1, 0, 11) == 0);
  }
  SECTION("read, write") {
    CHECK(actors.read(0, 10, 20) == -1);
    CHECK(actors.write(1, 12, 13) == 0);
  }
  SECTION("read, read") {
    CHECK(actors.read(0, 10, 20) == -1);
    CHECK(actors.read(1, 10, 20) == -1);
  }
  SECTION("neighbours") {
    CHECK(actors.write(0, 10, 20) == -1);
    CHECK(actors.write(1, 20, 30) == -1);
    CHECK(actors.write(2, 0, 10) == -1);
  }
  SECTION("ordered") {
    CHECK(actors.write(0, 10, 20) == -1);
    actors.order(0, 1);
    CHECK(actors.write(1, 10, 20) == -1);
  }
  SECTION("ordered before more work of the first") {
    CHECK(actors.write(0, 10, 20) == -1);
    actors.order(0, 1);
    CHECK(actors.write(0, 10, 20) == -1);
    CHECK(actors.write(1, 10, 20) == 0);
  }
}

TEST_CASE("a write must come after every read before it") {
  Actors actors;
  CHECK(actors.read(0, 0, 10) == -1);
  CHECK(actors.read(1, 0, 10) == -1);
  actors.order(1, 2);
  CHECK(actors.write(2, 0, 10) == 0);
  actors.order(0, 2);
  CHECK(actors.write(2, 0, 10) == -1);
}

TEST_CASE("a read does not hide the write before it") {
  Actors actors;
  CHECK(actors.write(0, 0, 10) == -1);
  actors.order(0, 1);
  CHECK(actors.read(1, 3, 8) == -1);
  CHECK(actors.read(2, 5, 6) == 0);
  CHECK(actors.read(2, 0, 1) == 0);
  CHECK(actors.read(2, 9, 10) == 0);
}

TEST_CASE("a write in the middle leaves the history of both ends") {
  Actors actors;
  CHECK(actors.write(0, 0, 30) == -1);
  actors.order(0, 1);
  CHECK(actors.write(1, 10, 20) == -1);
  CHECK(actors.read(2, 9, 10) == 0);
  CHECK(actors.read(2, 10, 20) == 1);
  CHECK(actors.read(2, 20, 21) == 0);
}

TEST_CASE("a read over gaps is kept in all of them") {
  Actors actors;
  CHECK(actors.write(0, 10, 20) == -1);
  CHECK(actors.write(0, 30, 40) == -1);
  CHECK(actors.read(0, 0, 50) == -1);
  for (const std::size_t at : {0, 9, 10, 20, 29, 35, 40, 49}) CHECK(actors.write(1, at, at + 1) == 0);
  CHECK(actors.write(1, 50, 51) == -1);
}

TEST_CASE("a history does not grow with time") {
  Actors actors;
  for (int round = 0; round < 100; ++round) {
    for (std::size_t piece = 0; piece < 10; ++piece) CHECK(actors.write(0, 10 * piece, 10 * piece + 10) == -1);
    actors.order(0, 1);
    CHECK(actors.read(1, 0, 100) == -1);
    CHECK(actors.read(1, 5, 95) == -1);
    actors.order(1, 0);
  }
  CHECK(actors.n_ranges() <= 12);
  CHECK(actors.write(0, 0, 100) == -1);
  CHECK(actors.n_ranges() == 1);
}
