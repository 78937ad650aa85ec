// SPDX-License-Identifier: Apache-2.0
// Events, copies, ops and the sticky error through the backend interface.
#include "backend/cpu/cpu_backend.h"

#include <latch>
#include <numeric>
#include <vector>

#include "backend/fake_ops.h"
#include "catch.h"
#include "thrown.h"

using namespace ferry;
using cpu::Launch;

namespace {

constexpr CopyDirection kToDevice = CopyDirection::kHostToDevice;
constexpr CopyDirection kToHost = CopyDirection::kDeviceToHost;

/// A buffer that goes host -> device on one stream, doubled on a second, back on a third.
std::vector<int> round_trip(Launch launch) {
  FakeOps ops(launch);
  Backend& backend = ops.backend();
  auto h2d = backend.create_stream("h2d"), compute = backend.create_stream("compute"),
       d2h = backend.create_stream("d2h");
  auto arrived = backend.create_event(), doubled = backend.create_event(), back = backend.create_event();
  std::vector<int> host(1000), device(1000), result(1000);
  std::iota(host.begin(), host.end(), 1);
  const std::size_t size_bytes = host.size() * sizeof(int);

  backend.copy(h2d.get(), device.data(), host.data(), size_bytes, kToDevice);
  backend.record(arrived.get(), h2d.get());
  backend.wait(compute.get(), arrived.get());
  ops.enqueue(compute.get(), [&] {
    for (int& value : device) value *= 2;
  });
  backend.record(doubled.get(), compute.get());
  backend.wait(d2h.get(), doubled.get());
  backend.copy(d2h.get(), result.data(), device.data(), size_bytes, kToHost);
  backend.record(back.get(), d2h.get());
  backend.sync(back.get());
  CHECK(backend.query(back.get()));
  CHECK(backend.elapsed_ms(arrived.get(), back.get()) >= 0);
  return result;
}

/// What a backend says after one of its ops failed.
struct Failed {
  FakeOps ops;
  std::unique_ptr<Stream> stream = ops.backend().create_stream("compute");
  std::unique_ptr<Event> event = ops.backend().create_event();

  Failed() {
    ops.backend().record(event.get(), stream.get());
    ops.enqueue(stream.get(), [] { throw Error(ErrorKind::kDevice, "op failed"); });
    thrown([&] { ops.backend().sync(stream.get()); });
  }
};

}  // namespace

TEST_CASE("copies and ops ordered by events give the right bytes, on threads and inline") {
  std::vector<int> expected(1000);
  for (int i = 0; i < 1000; ++i) expected[static_cast<std::size_t>(i)] = 2 * (i + 1);
  for (int round = 0; round < 20; ++round) CHECK(round_trip(Launch::kWorker) == expected);
  CHECK(round_trip(Launch::kInline) == expected);
}

TEST_CASE("a wait keeps the record of its time though the event is recorded again") {
  std::latch gate(1);
  FakeOps ops;
  Backend& backend = ops.backend();
  auto slow = backend.create_stream("slow"), fast = backend.create_stream("fast"), late = backend.create_stream("late");
  auto event = backend.create_event();
  bool slow_done = false, seen = false;
  ops.enqueue(slow.get(), [&] {
    gate.wait();
    slow_done = true;
  });
  backend.record(event.get(), slow.get());
  backend.wait(late.get(), event.get());
  ops.enqueue(late.get(), [&] { seen = slow_done; });

  backend.record(event.get(), fast.get());  // reached at once
  backend.sync(event.get());
  CHECK(backend.query(event.get()));
  gate.count_down();
  backend.sync(late.get());
  CHECK(seen);
}

TEST_CASE("query and sync see the last record only") {
  std::latch gate(1);
  FakeOps ops;
  Backend& backend = ops.backend();
  auto stream = backend.create_stream("compute");
  auto event = backend.create_event();
  backend.record(event.get(), stream.get());
  backend.sync(event.get());
  CHECK(backend.query(event.get()));
  ops.enqueue(stream.get(), [&] { gate.wait(); });
  backend.record(event.get(), stream.get());
  CHECK(!backend.query(event.get()));
  gate.count_down();
  backend.sync(event.get());
  CHECK(backend.query(event.get()));
}

TEST_CASE("an event may be destroyed before the work that waits for it is done") {
  std::latch gate(1);
  FakeOps ops;
  Backend& backend = ops.backend();
  auto first = backend.create_stream("first"), second = backend.create_stream("second");
  bool first_done = false, seen = false;
  ops.enqueue(first.get(), [&] {
    gate.wait();
    first_done = true;
  });
  {
    auto event = backend.create_event();
    backend.record(event.get(), first.get());
    backend.wait(second.get(), event.get());
  }
  ops.enqueue(second.get(), [&] { seen = first_done; });
  gate.count_down();
  backend.sync(second.get());
  CHECK(seen);
}

TEST_CASE("an event that was never recorded is our bug, whoever asks") {
  FakeOps ops;
  Backend& backend = ops.backend();
  auto stream = backend.create_stream("compute");
  auto event = backend.create_event();
  CHECK(thrown([&] { backend.wait(stream.get(), event.get()); }) == "assertion");
  CHECK(thrown([&] { backend.query(event.get()); }) == "assertion");
  CHECK(thrown([&] { backend.sync(event.get()); }) == "assertion");
  CHECK(thrown([&] { backend.elapsed_ms(event.get(), event.get()); }) == "assertion");
}

TEST_CASE("after an op failed every call on the backend throws its error") {
  Failed failed;
  Backend& backend = failed.ops.backend();
  const StreamRef stream = failed.stream.get();
  const EventRef event = failed.event.get();
  const std::string expected = "device: op failed";
  int from = 0, to = 0;
  CHECK(thrown([&] { failed.ops.enqueue(stream, [] {}); }) == expected);
  CHECK(thrown([&] { backend.copy(stream, &to, &from, sizeof(int), kToDevice); }) == expected);
  CHECK(thrown([&] { backend.record(event, stream); }) == expected);
  CHECK(thrown([&] { backend.wait(stream, event); }) == expected);
  CHECK(thrown([&] { backend.query(event); }) == expected);
  CHECK(thrown([&] { backend.sync(event); }) == expected);
  CHECK(thrown([&] { backend.sync(stream); }) == expected);
}

TEST_CASE("a failed backend and its streams are destroyed without a hang, queued work does not run") {
  std::latch gate(1);
  bool ran = false;
  {
    FakeOps ops;
    auto first = ops.backend().create_stream("first"), second = ops.backend().create_stream("second");
    auto event = ops.backend().create_event();
    ops.enqueue(first.get(), [&] {
      gate.wait();
      throw Error(ErrorKind::kDevice, "op failed");
    });
    ops.backend().record(event.get(), first.get());
    ops.backend().wait(second.get(), event.get());
    ops.enqueue(second.get(), [&] { ran = true; });
    gate.count_down();
  }
  CHECK(!ran);
}

TEST_CASE("an op is checked before it is enqueued, and a refused op does not break the backend") {
  FakeOps ops;
  auto stream = ops.backend().create_stream("compute");
  CHECK(thrown([&] { ops.backend().enqueue(stream.get(), Fill{}); }) == "shape: fill: x is missing, expected a tensor");
  bool ran = false;
  ops.enqueue(stream.get(), [&] { ran = true; });
  ops.backend().sync(stream.get());
  CHECK(ran);
}

TEST_CASE("too little scratch is refused") {
  FakeOps ops(Launch::kWorker, true);
  auto stream = ops.backend().create_stream("compute");
  const Buffer buffer = ops.backend().allocate_device(FakeOps::kScratchBytes, "scratch");
  const std::string advice = " bytes, expected 100: ask scratch_bytes()";
  CHECK(thrown([&] {
          ops.enqueue(stream.get(), [] {}, {buffer.data(), 99});
        }) == "shape: fill: scratch has 99" + advice);
  CHECK(thrown([&] { ops.enqueue(stream.get(), [] {}, {nullptr, 100}); }) == "shape: fill: scratch has 0" + advice);
  CHECK(thrown([&] { ops.enqueue(stream.get(), [] {}, {buffer.data(), 100}); }).empty());
}

TEST_CASE("a copy of 0 bytes is nothing, a copy from nowhere is our bug") {
  FakeOps ops;
  auto stream = ops.backend().create_stream("h2d");
  int value = 0;
  CHECK(thrown([&] { ops.backend().copy(stream.get(), nullptr, nullptr, 0, kToDevice); }).empty());
  CHECK(thrown([&] { ops.backend().copy(stream.get(), &value, nullptr, 4, kToDevice); }) == "assertion");
}

TEST_CASE("the CPU backend says what it is") {
  FakeOps ops, synchronous(Launch::kInline);
  CHECK(ops.backend().capabilities().name == "cpu");
  CHECK(!ops.backend().capabilities().is_device);
  CHECK(ops.backend().capabilities().description.find(", scalar, 1 thread") != std::string::npos);
  CHECK(synchronous.backend().capabilities().description.find(", scalar, 1 thread, synchronous") != std::string::npos);
}
