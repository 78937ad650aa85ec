// SPDX-License-Identifier: Apache-2.0
// Each kind of order: with it a program passes, without it the race is found.
#include "backend/trace_backend.h"

#include <functional>
#include <thread>
#include <utility>

#include "catch.h"
#include "thrown.h"

using namespace ferry;

namespace {

/// Two streams, device memory x and y, host memory h; 16 floats each.
struct Bench {
  static constexpr std::int64_t kElems = 16;
  static constexpr std::size_t kBytes = kElems * sizeof(float);

  explicit Bench(const std::string& name = "trace:cpu") : backend(create_backend(name, {.threads = 1})) {}

  static TensorView view(const Buffer& buffer) { return {buffer.data(), DType::kF32, {kElems}}; }

  void write_x(const std::unique_ptr<Stream>& stream) { backend->enqueue(stream.get(), Fill{view(x)}); }
  void read_x(const std::unique_ptr<Stream>& stream, const Buffer& to) {
    backend->enqueue(stream.get(), Cast{.x = view(x), .y = view(to)});
  }
  void upload(const std::unique_ptr<Stream>& stream) {
    backend->copy(stream.get(), x.data(), h.data(), kBytes, CopyDirection::kHostToDevice);
  }
  void host(Access access) { backend->host_access(access, h.data(), kBytes, "update"); }
  void order(const std::unique_ptr<Stream>& earlier, const std::unique_ptr<Stream>& later) {
    backend->record(event.get(), earlier.get());
    backend->wait(later.get(), event.get());
  }

  std::unique_ptr<Backend> backend;
  Buffer x = backend->allocate_device(kBytes, "x"), y = backend->allocate_device(kBytes, "y"),
         z = backend->allocate_device(kBytes, "z"), h = backend->allocate_host(kBytes, "h");
  std::unique_ptr<Event> event = backend->create_event();
  std::unique_ptr<Stream> a = backend->create_stream("a"), b = backend->create_stream("b");
};

template <class Fn>
bool races(Fn&& fn) {
  return thrown(std::forward<Fn>(fn)).find("device: trace:cpu: a race in ") == 0;
}

void run_in_thread(const std::function<void()>& fn) { std::thread(fn).join(); }

}  // namespace

TEST_CASE("two streams that use the same memory need an event") {
  Bench bench;
  bench.write_x(bench.a);
  SECTION("with it") {
    bench.order(bench.a, bench.b);
    CHECK(thrown([&] { bench.read_x(bench.b, bench.y); }).empty());
  }
  SECTION("without it") {
    CHECK(thrown([&] { bench.read_x(bench.b, bench.y); }) ==
          "device: trace:cpu: a race in x: op 0, fill on stream a writes x, bytes 0 to 63; op 1, cast on stream b "
          "reads x, bytes 0 to 63; nothing orders the two: an event is missing between stream a and stream b: record "
          "it after op 0, fill, wait for it before op 1, cast");
  }
  SECTION("recorded too early") {
    bench.backend->record(bench.event.get(), bench.a.get());
    bench.write_x(bench.a);
    bench.backend->wait(bench.b.get(), bench.event.get());
    CHECK(races([&] { bench.read_x(bench.b, bench.y); }));
  }
  SECTION("in the wrong direction") {
    bench.order(bench.b, bench.a);
    CHECK(races([&] { bench.read_x(bench.b, bench.y); }));
  }
  SECTION("on one stream") {
    CHECK(thrown([&] { bench.read_x(bench.a, bench.y); }).empty());
  }
  SECTION("through a third stream") {
    const auto c = bench.backend->create_stream("c");
    bench.order(bench.a, c);
    bench.order(c, bench.b);
    CHECK(thrown([&] { bench.read_x(bench.b, bench.y); }).empty());
  }
}

TEST_CASE("work that is done already still needs an event") {
  Bench bench;
  bench.write_x(bench.a);
  run_in_thread([&] { bench.backend->sync(bench.a.get()); });
  CHECK(races([&] { bench.read_x(bench.b, bench.y); }));
}

TEST_CASE("two reads need no order, a write after them needs it with both") {
  Bench bench;
  const auto c = bench.backend->create_stream("c");
  bench.read_x(bench.a, bench.y);
  bench.read_x(bench.b, bench.z);
  bench.order(bench.a, c);
  SECTION("both") {
    bench.order(bench.b, c);
    CHECK(thrown([&] { bench.write_x(c); }).empty());
  }
  SECTION("one") {
    CHECK(races([&] { bench.write_x(c); }));
  }
}

TEST_CASE("a wait is for the record that was the last when it was called") {
  Bench bench;
  bench.write_x(bench.a);
  bench.order(bench.a, bench.b);
  bench.backend->enqueue(bench.a.get(), Fill{Bench::view(bench.y)});
  bench.backend->record(bench.event.get(), bench.a.get());
  SECTION("what came before it is ordered") {
    CHECK(thrown([&] { bench.read_x(bench.b, bench.z); }).empty());
  }
  SECTION("what came after it is not") {
    CHECK(races([&] { bench.read_x(bench.b, bench.y); }));
  }
  SECTION("until the next wait") {
    bench.backend->wait(bench.b.get(), bench.event.get());
    CHECK(thrown([&] { bench.read_x(bench.b, bench.y); }).empty());
  }
}

TEST_CASE("an event that is recorded again stands for the last stream alone") {
  Bench bench;
  const auto c = bench.backend->create_stream("c");
  bench.write_x(bench.a);
  bench.backend->record(bench.event.get(), bench.a.get());
  bench.order(bench.b, c);
  CHECK(races([&] { bench.read_x(c, bench.y); }));
}

TEST_CASE("a thread that uses host memory after a copy must have synced with it") {
  Bench bench("trace:cpu,slow=copies");
  bench.upload(bench.a);
  bench.backend->record(bench.event.get(), bench.a.get());
  SECTION("by nothing") {
    CHECK(races([&] { bench.host(GENERATE(Access::kWrite, Access::kReadWrite)); }));
  }
  SECTION("by nothing, where both read") {
    CHECK(thrown([&] { bench.host(Access::kRead); }).empty());
  }
  SECTION("with the event") {
    bench.backend->sync(bench.event.get());
    CHECK(thrown([&] { bench.host(Access::kWrite); }).empty());
  }
  SECTION("with the stream") {
    bench.backend->sync(bench.a.get());
    CHECK(thrown([&] { bench.host(Access::kWrite); }).empty());
  }
  SECTION("with a query, if it is true") {
    const bool reached = bench.backend->query(bench.event.get());
    CHECK(races([&] { bench.host(Access::kWrite); }) == !reached);
  }
  SECTION("with a query that is true") {
    while (!bench.backend->query(bench.event.get())) std::this_thread::yield();
    CHECK(thrown([&] { bench.host(Access::kWrite); }).empty());
  }
  SECTION("on another thread") {
    run_in_thread([&] { bench.backend->sync(bench.event.get()); });
    CHECK(races([&] { bench.host(Access::kWrite); }));
  }
  SECTION("with another stream") {
    bench.backend->sync(bench.b.get());
    CHECK(races([&] { bench.host(Access::kWrite); }));
  }
}

TEST_CASE("what a thread does is ordered before the work that it enqueues, not before that of others") {
  Bench bench;
  bench.host(Access::kWrite);
  SECTION("its own copy") {
    CHECK(thrown([&] { bench.upload(bench.a); }).empty());
  }
  SECTION("a copy that it enqueued before") {
    bench.upload(bench.a);
    CHECK(races([&] { bench.host(Access::kWrite); }));
  }
  SECTION("the copy of another thread") {
    run_in_thread([&] { CHECK(races([&] { bench.upload(bench.a); })); });
  }
  SECTION("a copy behind its record") {
    bench.order(bench.b, bench.a);
    run_in_thread([&] { CHECK(thrown([&] { bench.upload(bench.a); }).empty()); });
  }
}

TEST_CASE("a stream's work that a thread has synced with is ordered before what the thread enqueues elsewhere") {
  Bench bench;
  bench.write_x(bench.a);
  bench.backend->sync(bench.a.get());
  CHECK(thrown([&] { bench.read_x(bench.b, bench.y); }).empty());
}

TEST_CASE("two threads are ordered by publish and observe of the same key") {
  Bench bench;
  const int key = 0, other_key = 0;
  run_in_thread([&] {
    bench.host(Access::kWrite);
    bench.backend->publish(&key);
  });
  SECTION("with it") {
    bench.backend->observe(&key);
    CHECK(thrown([&] { bench.host(Access::kRead); }).empty());
  }
  SECTION("without it") {
    CHECK(races([&] { bench.host(Access::kRead); }));
  }
  SECTION("with another key") {
    bench.backend->observe(&other_key);
    CHECK(races([&] { bench.host(Access::kRead); }));
  }
  SECTION("a later publish of another thread takes nothing away") {
    run_in_thread([&] { bench.backend->publish(&key); });
    bench.backend->observe(&key);
    CHECK(thrown([&] { bench.host(Access::kRead); }).empty());
  }
  SECTION("work after the publish is not known") {
    bench.backend->observe(&key);
    bench.host(Access::kWrite);
    run_in_thread([&] { CHECK(races([&] { bench.host(Access::kRead); })); });
  }
}

TEST_CASE("a tensor reaches from its first to its last byte") {
  Bench bench;
  const TensorView matrix(bench.x.data(), DType::kF32, {4, 4});
  const TensorView small(bench.y.data(), DType::kF32, {2, 4});
  const auto add = [&](const std::unique_ptr<Stream>& stream, const TensorView& rows, const Buffer& to) {
    bench.backend->enqueue(
        stream.get(),
        SwigluForward{.gate = rows.columns(0, 2), .up = small.columns(0, 2), .y = {to.data(), DType::kF32, {2, 2}}});
  };
  bench.backend->enqueue(bench.a.get(), Fill{matrix.rows(2, 2)});
  CHECK(thrown([&] { add(bench.b, matrix.rows(0, 2), bench.z); }).empty());
  CHECK(races([&] { add(bench.b, matrix.rows(1, 2), bench.z); }));
}

TEST_CASE("a tensor that an op changes in place is written") {
  Bench bench;
  const TensorView rows(bench.x.data(), DType::kF32, {1, 2, 1, 4});
  const TensorView cos(bench.y.data(), DType::kF32, {2, 2}), sin(bench.z.data(), DType::kF32, {2, 2});
  bench.backend->copy(bench.a.get(), bench.h.data(), bench.x.data(), 4, CopyDirection::kDeviceToHost);
  CHECK(races([&] { bench.backend->enqueue(bench.b.get(), Rope{.x = rows, .cos = cos, .sin = sin}); }));
}

TEST_CASE("scratch is written by the op that gets it") {
  Bench bench;
  const SumOfSquares op{.x = Bench::view(bench.x), .skip = {}, .y = Bench::view(bench.y).rows(0, 1)};
  const SumOfSquares same{.x = Bench::view(bench.x), .skip = {}, .y = Bench::view(bench.y).rows(1, 1)};
  const Buffer buffer = bench.backend->allocate_device(bench.backend->scratch_bytes(op) + 256, "scratch of ops");
  const Scratch scratch{buffer.data(), buffer.size_bytes()};
  bench.backend->enqueue(bench.a.get(), op, scratch);
  const std::string message = thrown([&] { bench.backend->enqueue(bench.b.get(), same, scratch); });
  bench.a.reset();  // done with the scratch
  CHECK(message.find("a race in scratch of ops: op 0, sum_of_squares on stream a writes scratch, ") !=
        std::string::npos);
}

TEST_CASE("a copy reads its source and writes its destination") {
  Bench bench;
  bench.upload(bench.a);
  SECTION("destination") {
    CHECK(thrown([&] {
            bench.read_x(bench.b, bench.y);
          }).find("copy 0, host to device on stream a writes its destination, bytes 0 to 63; op 0, cast") !=
          std::string::npos);
  }
  SECTION("source") {
    CHECK(
        thrown([&] {
          bench.backend->copy(bench.b.get(), bench.h.data(), bench.y.data(), 4, CopyDirection::kDeviceToHost);
        })
            .find("reads its source, bytes 0 to 63; copy 1, device to host on stream b writes its destination, bytes 0 "
                  "to 3") != std::string::npos);
  }
}

TEST_CASE("memory that the backend does not hold is refused") {
  Bench bench;
  float elsewhere[4];
  void* source = elsewhere;
  SECTION("it never did") {}
  SECTION("it is freed") { source = bench.backend->allocate_host(16, "h").data(); }
  CHECK(thrown([&] {
          bench.backend->copy(bench.a.get(), bench.x.data(), source, 16, CopyDirection::kHostToDevice);
        }).find("device: trace:cpu: copy 0, host to device on stream a reads its source: 16 bytes at ") == 0);
}

TEST_CASE("a refused op leaves no trace, and one that races does not run") {
  Bench bench;
  bench.write_x(bench.a);
  bench.backend->sync(bench.a.get());
  CHECK(thrown([&] { bench.backend->enqueue(bench.b.get(), Fill{}); }) ==
        "shape: fill: x is missing, expected a tensor");
  CHECK(trace_report(*bench.backend).n_ops == 1);
  bench.backend->enqueue(bench.a.get(), Cast{.x = Bench::view(bench.x), .y = Bench::view(bench.y)});
  CHECK(races([&] { bench.backend->enqueue(bench.b.get(), Fill{.x = Bench::view(bench.y), .byte = 0xff}); }));
  bench.a.reset();
  bench.b.reset();
  CHECK(*static_cast<const float*>(bench.y.data()) == 0);
}

TEST_CASE("after a race every call repeats it") {
  Bench bench;
  bench.backend->record(bench.event.get(), bench.a.get());
  bench.write_x(bench.a);
  const std::string message = thrown([&] { bench.write_x(bench.b); });
  CHECK(message.find("device: trace:cpu: a race in x: ") == 0);
  CHECK(thrown([&] { bench.write_x(bench.a); }) == message);
  CHECK(thrown([&] { bench.upload(bench.a); }) == message);
  CHECK(thrown([&] { bench.host(Access::kRead); }) == message);
  CHECK(thrown([&] { bench.backend->record(bench.event.get(), bench.a.get()); }) == message);
  CHECK(thrown([&] { bench.backend->wait(bench.a.get(), bench.event.get()); }) == message);
  CHECK(thrown([&] { bench.backend->query(bench.event.get()); }) == message);
  CHECK(thrown([&] { bench.backend->sync(bench.event.get()); }) == message);
  CHECK(thrown([&] { bench.backend->sync(bench.a.get()); }) == message);
}

TEST_CASE("an event that was never recorded is our bug") {
  Bench bench;
  CHECK(thrown([&] { bench.backend->wait(bench.a.get(), bench.event.get()); }) == "assertion");
  CHECK(thrown([&] { bench.backend->sync(bench.event.get()); }) == "assertion");
  CHECK(thrown([&] { bench.backend->query(bench.event.get()); }) == "assertion");
}

TEST_CASE("a report counts work, bytes and waits, and says what each wait is between") {
  Bench bench;
  bench.upload(bench.a);
  bench.order(bench.a, bench.b);
  bench.read_x(bench.b, bench.y);
  bench.backend->wait(bench.b.get(), bench.event.get());
  bench.backend->copy(bench.b.get(), bench.h.data(), bench.y.data(), 8, CopyDirection::kDeviceToHost);
  bench.backend->record(bench.event.get(), bench.b.get());
  bench.backend->sync(bench.event.get());
  const TraceReport report = trace_report(*bench.backend);
  CHECK(report.n_ops == 1);
  CHECK(report.n_copies == 2);
  CHECK(report.h2d_bytes == Bench::kBytes);
  CHECK(report.d2h_bytes == 8);
  REQUIRE(report.waits.size() == 3);
  CHECK(report.waits[0].text == "wait 0: stream b, after its start, waits for stream a, after copy 0, host to device");
  CHECK(report.waits[0].adds_order);
  CHECK(report.waits[1].text ==
        "wait 1: stream b, after op 0, cast, waits for stream a, after copy 0, host to device (adds no order)");
  CHECK_FALSE(report.waits[1].adds_order);
  CHECK(report.waits[2].waiter == "host thread 0");
  CHECK(report.waits[2].recorder == "stream b");
  CHECK_FALSE(report.waits[2].dropped);
}

TEST_CASE("a report of another backend is our bug") {
  const auto backend = create_backend("cpu", {.threads = 1});
  CHECK(thrown([&] { trace_report(*backend); }) == "assertion");
}

TEST_CASE("a trace counts and frees its memory, and says when there is too little") {
  const auto backend = create_backend("trace:cpu", {.threads = 1});
  {
    const Buffer device = backend->allocate_device(1000, "weights");
    CHECK(backend->device_bytes() == 1000);
  }
  CHECK(backend->device_bytes() == 0);
  const std::string message = thrown([&] { backend->allocate_host(std::size_t{1} << 60, "weights"); });
  CHECK(message.find("memory: host memory for weights: 1.0 EiB are not available") == 0);
}
