// SPDX-License-Identifier: Apache-2.0
// Memory of the detector: what it forgets, what lies outside; and what it says of each pair of actors.
#include "backend/race_detector.h"

#include "catch.h"

using namespace ferry;

namespace {

using Kind = RaceDetector::ActorKind;

struct Bench {
  RaceDetector detector;
  std::byte bytes[64];
  std::size_t stream = detector.add_actor(Kind::kStream, "stream h2d");
  std::size_t thread = detector.add_actor(Kind::kThread, "host thread 0");

  Bench() { add(); }
  void add() {
    detector.add_memory(bytes, sizeof bytes);
    detector.name_memory(bytes, "weights");
  }
  std::string write(std::size_t actor, const Work& work, std::size_t begin, std::size_t count) {
    detector.begin(actor, work);
    return detector.access(actor, "x", true, bytes + begin, count);
  }
};

constexpr Work kFill{Work::Kind::kOp, "fill", 7};
constexpr Work kUpdate{Work::Kind::kHost, "update", 0};

}  // namespace

TEST_CASE("both accesses of a race are named, and what is missing between them") {
  Bench bench;
  SECTION("a thread after a stream") {
    CHECK(bench.write(bench.stream, kFill, 0, 16).empty());
    CHECK(bench.write(bench.thread, kUpdate, 8, 16) ==
          "a race in weights: op 7, fill on stream h2d writes x, bytes 0 to 15; update on host thread 0 writes x, "
          "bytes 8 to 23; nothing orders the two: an event is missing between stream h2d and host thread 0: record it "
          "after op 7, fill, sync with it before update");
  }
  SECTION("a stream after a thread") {
    CHECK(bench.write(bench.thread, kUpdate, 0, 16).empty());
    CHECK(bench.write(bench.stream, kFill, 8, 16) ==
          "a race in weights: update on host thread 0 writes x, bytes 0 to 15; op 7, fill on stream h2d writes x, "
          "bytes 8 to 23; nothing orders the two: a lock is missing between host thread 0 and the thread that enqueues "
          "op 7, fill: publish after the first, observe before the second");
  }
  SECTION("two threads") {
    const std::size_t other = bench.detector.add_actor(Kind::kThread, "host thread 1");
    CHECK(bench.write(bench.thread, kUpdate, 0, 16).empty());
    CHECK(bench.write(other, kUpdate, 0, 16).find("between host thread 0 and the thread that does update") !=
          std::string::npos);
  }
  SECTION("two streams") {
    const std::size_t other = bench.detector.add_actor(Kind::kStream, "stream compute");
    CHECK(bench.write(bench.stream, {Work::Kind::kCopy, "host to device", 2}, 0, 16).empty());
    CHECK(bench.write(other, kFill, 0, 16)
              .find("between stream h2d and stream compute: record it after copy 2, host to device, wait for it before "
                    "op 7, "
                    "fill") != std::string::npos);
  }
}

TEST_CASE("memory that is freed forgets its history") {
  Bench bench;
  CHECK(bench.write(bench.stream, kFill, 0, 16).empty());
  bench.detector.remove_memory(bench.bytes);
  bench.add();
  CHECK(bench.write(bench.thread, kUpdate, 0, 16).empty());
}

TEST_CASE("an access outside the memory of the backend is refused") {
  Bench bench;
  CHECK(bench.write(bench.stream, kFill, 0, 64).empty());
  CHECK(bench.write(bench.stream, kFill, 60, 5).find("op 7, fill on stream h2d writes x: 5 bytes at ") == 0);
  CHECK(bench.detector.access(bench.stream, "x", false, &bench, 1).find("are not inside memory of this backend") !=
        std::string::npos);
  bench.detector.remove_memory(bench.bytes);
  CHECK(bench.write(bench.stream, kFill, 0, 1).find("it is freed already") != std::string::npos);
}
