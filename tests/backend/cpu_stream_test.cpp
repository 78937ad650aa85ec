// SPDX-License-Identifier: Apache-2.0
// Streams as threads: order, concurrency, draining after a failure.
#include "backend/cpu/cpu_stream.h"

#include <latch>
#include <stdexcept>
#include <vector>

#include "catch.h"
#include "thrown.h"

using namespace ferry;
using namespace ferry::cpu;

TEST_CASE("work on one stream runs in order") {
  Failure failure;
  std::vector<int> order;
  CpuStream stream("compute", Launch::kWorker, failure);
  for (int i = 0; i < 100; ++i) stream.run([&order, i] { order.push_back(i); });
  stream.sync();
  REQUIRE(order.size() == 100);
  for (int i = 0; i < 100; ++i) CHECK(order[static_cast<std::size_t>(i)] == i);
}

TEST_CASE("streams run at the same time") {
  Failure failure;
  std::latch both_inside(2);  // passed only if neither stream waits for the other to finish
  CpuStream first("h2d", Launch::kWorker, failure);
  CpuStream second("d2h", Launch::kWorker, failure);
  first.run([&] { both_inside.arrive_and_wait(); });
  second.run([&] { both_inside.arrive_and_wait(); });
  first.sync();
  second.sync();
  CHECK(both_inside.try_wait());
}

TEST_CASE("enqueueing returns while the work still runs") {
  Failure failure;
  std::latch gate(1);
  CpuStream stream("compute", Launch::kWorker, failure);
  stream.run([&] { gate.wait(); });
  auto mark = std::make_shared<Mark>();
  stream.record(mark);
  CHECK(!mark->reached());
  gate.count_down();
  mark->block();
  CHECK(mark->reached());
}

TEST_CASE("destroying a stream first runs what is queued") {
  Failure failure;
  int n_run = 0;
  {
    CpuStream stream("compute", Launch::kWorker, failure);
    for (int i = 0; i < 50; ++i) stream.run([&] { ++n_run; });
  }
  CHECK(n_run == 50);
}

TEST_CASE("streams that wait for each other in turn do not deadlock") {
  Failure failure;
  CpuStream even("even", Launch::kWorker, failure);
  CpuStream odd("odd", Launch::kWorker, failure);
  std::vector<int> order;  // guarded by the marks alone
  std::shared_ptr<Mark> last;
  for (int i = 0; i < 200; ++i) {
    CpuStream& stream = i % 2 == 0 ? even : odd;
    if (last) stream.wait(last);
    stream.run([&order, i] { order.push_back(i); });
    last = std::make_shared<Mark>();
    stream.record(last);
  }
  last->block();
  REQUIRE(order.size() == 200);
  for (int i = 0; i < 200; ++i) CHECK(order[static_cast<std::size_t>(i)] == i);
}

TEST_CASE("of several failures the first is kept") {
  Failure failure;
  CHECK(!failure.any());
  failure.keep(std::make_exception_ptr(Error(ErrorKind::kDevice, "first")));
  failure.keep(std::make_exception_ptr(Error(ErrorKind::kDevice, "second")));
  CHECK(thrown([&] { failure.rethrow_if_any(); }) == "device: first");
}

TEST_CASE("the first failure stays, later tasks do not run, marks are still reached") {
  Failure failure;
  CpuStream stream("compute", Launch::kWorker, failure);
  bool ran = false;
  stream.run([] { throw Error(ErrorKind::kDevice, "first"); });
  stream.run([&] { ran = true; });
  stream.run([] { throw Error(ErrorKind::kDevice, "second"); });
  stream.sync();
  CHECK(!ran);
  CHECK(thrown([&] { failure.rethrow_if_any(); }) == "device: first");
  CHECK(thrown([&] { failure.rethrow_if_any(); }) == "device: first");
}

TEST_CASE("work that waits for a failed stream does not run") {
  Failure failure;
  bool ran = false;
  CpuStream first("first", Launch::kWorker, failure);
  CpuStream second("second", Launch::kWorker, failure);
  std::latch gate(1);
  first.run([&] { gate.wait(); });
  first.run([] { throw Error(ErrorKind::kDevice, "broken"); });
  auto mark = std::make_shared<Mark>();
  first.record(mark);
  second.wait(mark);
  second.run([&] { ran = true; });
  gate.count_down();
  second.sync();
  CHECK(!ran);
}

TEST_CASE("an inline stream runs work before the call returns and throws there") {
  Failure failure;
  CpuStream stream("compute", Launch::kInline, failure);
  bool ran = false;
  stream.run([&] { ran = true; });
  CHECK(ran);
  auto mark = std::make_shared<Mark>();
  stream.record(mark);
  CHECK(mark->reached());
  CHECK(thrown([&] { stream.run([] { throw Error(ErrorKind::kDevice, "here"); }); }) == "device: here");
  CHECK(failure.any());
}

TEST_CASE("the time of a mark that is not reached is our bug") {
  Mark mark;
  CHECK(thrown([&] { mark.time(); }) == "assertion");
}
