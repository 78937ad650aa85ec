// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/cuda_backend.h"

#include <numeric>
#include <vector>

#include "backend/cuda/device_array.h"
#include "catch.h"
#include "gpu_or_skip.h"
#include "thrown.h"

using namespace ferry;
using namespace ferry::cuda;
using ferry::test::DeviceArray;

namespace {

constexpr CopyDirection kToDevice = CopyDirection::kHostToDevice;
constexpr CopyDirection kToHost = CopyDirection::kDeviceToHost;
constexpr CopyDirection kOnDevice = CopyDirection::kDeviceToDevice;

std::unique_ptr<Backend> backend_of(bool pin_memory = true) {
  gpu_or_skip();
  CudaOptions options;
  options.pin_memory = pin_memory;
  return create_cuda_backend(options);
}

/// Several pieces of a staged copy and a rest.
constexpr std::int64_t kElems = 5'000'001;

struct Slabs {
  explicit Slabs(Backend& backend)
      : from(backend.allocate_host(kElems * 4, "from")),
        to(backend.allocate_host(kElems * 4, "to")),
        device(backend.allocate_device(kElems * 4, "device")) {}
  float* source() const { return static_cast<float*>(from.data()); }
  float* result() const { return static_cast<float*>(to.data()); }
  TensorView view() const { return {device.data(), DType::kF32, {kElems}}; }

  Buffer from;
  Buffer to;
  Buffer device;
};

/// Work of some milliseconds, so that what follows it too early is seen.
struct SlowWork {
  explicit SlowWork(Backend& owner)
      : backend(owner), x(owner.allocate_device(kBytes, "x")), y(owner.allocate_device(kBytes, "y")) {}
  void enqueue(StreamRef stream) const {
    for (int i = 0; i < 20; ++i) backend.copy(stream, y.data(), x.data(), kBytes, kOnDevice);
  }

  static constexpr std::size_t kBytes = std::size_t{512} << 20;
  Backend& backend;
  Buffer x;
  Buffer y;
};

}  // namespace

TEST_CASE("copies and ops ordered by events give the right bytes, pinned and staged", "[gpu]") {
  for (const bool pin : {true, false}) {
    CAPTURE(pin);
    const auto backend = backend_of(pin);
    const Slabs slabs(*backend);
    const SlowWork slow(*backend);
    const auto h2d = backend->create_stream("h2d"), compute = backend->create_stream("compute"),
               d2h = backend->create_stream("d2h");
    const auto arrived = backend->create_event(), cleared = backend->create_event(), back = backend->create_event();
    std::iota(slabs.source(), slabs.source() + kElems, 1.0F);
    slow.enqueue(h2d.get());
    backend->copy(h2d.get(), slabs.device.data(), slabs.from.data(), kElems * 4, kToDevice);
    backend->record(arrived.get(), h2d.get());
    backend->wait(compute.get(), arrived.get());
    slow.enqueue(compute.get());
    backend->enqueue(compute.get(), Fill{slabs.view().rows(0, kElems / 2)});
    backend->record(cleared.get(), compute.get());
    backend->wait(d2h.get(), cleared.get());
    backend->copy(d2h.get(), slabs.to.data(), slabs.device.data(), kElems * 4, kToHost);
    backend->record(back.get(), d2h.get());
    backend->sync(back.get());

    CHECK(backend->query(back.get()));
    CHECK(backend->elapsed_ms(arrived.get(), back.get()) > 0);
    std::int64_t n_wrong = 0;
    for (std::int64_t i = 0; i < kElems; ++i) {
      n_wrong += slabs.result()[i] != (i < kElems / 2 ? 0.0F : slabs.source()[i]) ? 1 : 0;
    }
    CHECK(n_wrong == 0);
  }
}

TEST_CASE("calls return before the work is done", "[gpu]") {
  for (const bool pin : {true, false}) {
    CAPTURE(pin);
    const auto backend = backend_of(pin);
    const Slabs slabs(*backend);
    const SlowWork slow(*backend);
    const auto stream = backend->create_stream("stream");
    const auto event = backend->create_event();
    // The first use of a stream may set things up and block.
    backend->copy(stream.get(), slabs.device.data(), slabs.from.data(), 4, kToDevice);
    backend->sync(stream.get());
    slow.enqueue(stream.get());
    backend->copy(stream.get(), slabs.device.data(), slabs.from.data(), kElems * 4, kToDevice);
    backend->copy(stream.get(), slabs.to.data(), slabs.device.data(), kElems * 4, kToHost);
    backend->record(event.get(), stream.get());
    CHECK(!backend->query(event.get()));
    backend->sync(event.get());
    CHECK(backend->query(event.get()));
  }
}

TEST_CASE("a copy reads host memory when its stream gets there, not when it is enqueued", "[gpu]") {
  for (const bool pin : {true, false}) {
    CAPTURE(pin);
    const auto backend = backend_of(pin);
    const Slabs slabs(*backend);
    const SlowWork slow(*backend);
    const auto stream = backend->create_stream("stream");
    const DeviceArray<float> seven(*backend, *stream, std::vector<float>(kElems, 7.0F));
    std::fill_n(slabs.source(), kElems, 1.0F);
    slow.enqueue(stream.get());
    backend->copy(stream.get(), slabs.from.data(), seven.data(), kElems * 4, kToHost);
    backend->copy(stream.get(), slabs.device.data(), slabs.from.data(), kElems * 4, kToDevice);
    backend->copy(stream.get(), slabs.to.data(), slabs.device.data(), kElems * 4, kToHost);
    backend->sync(stream.get());
    CHECK(std::count(slabs.result(), slabs.result() + kElems, 7.0F) == kElems);
  }
}

TEST_CASE("memory of other origin is copied right", "[gpu]") {
  const auto backend = backend_of();
  const auto stream = backend->create_stream("stream");
  const Buffer device = backend->allocate_device(kElems * 4, "device");
  std::vector<float> from(kElems), to(kElems);
  std::iota(from.begin(), from.end(), 0.0F);
  backend->copy(stream.get(), device.data(), from.data(), kElems * 4, kToDevice);
  backend->copy(stream.get(), to.data(), device.data(), kElems * 4, kToHost);
  backend->sync(stream.get());
  CHECK(from == to);
}

TEST_CASE("query and sync see the last record of an event", "[gpu]") {
  const auto backend = backend_of();
  const SlowWork slow(*backend);
  const auto stream = backend->create_stream("stream");
  const auto event = backend->create_event();
  backend->record(event.get(), stream.get());
  backend->sync(event.get());
  CHECK(backend->query(event.get()));
  slow.enqueue(stream.get());
  backend->record(event.get(), stream.get());
  CHECK(!backend->query(event.get()));
  backend->sync(event.get());
  CHECK(backend->query(event.get()));
}

TEST_CASE("a query that says no leaves no error behind", "[gpu]") {
  const auto backend = backend_of();
  const SlowWork slow(*backend);
  const auto stream = backend->create_stream("stream"), other = backend->create_stream("other");
  const auto event = backend->create_event();
  const DeviceArray<float> x(*backend, *other, {1, 2, 3});
  slow.enqueue(stream.get());
  backend->record(event.get(), stream.get());
  CHECK(!backend->query(event.get()));
  backend->enqueue(other.get(), Fill{TensorView(x.data(), DType::kF32, {2})});
  CHECK(x.read() == std::vector<float>{0, 0, 3});
}

TEST_CASE("a stream that ends waits for its work, an event may end before", "[gpu]") {
  const auto backend = backend_of();
  const Slabs slabs(*backend);
  const SlowWork slow(*backend);
  std::fill_n(slabs.source(), kElems, 3.0F);
  {
    const auto first = backend->create_stream("first"), second = backend->create_stream("second");
    slow.enqueue(first.get());
    backend->copy(first.get(), slabs.device.data(), slabs.from.data(), kElems * 4, kToDevice);
    {
      const auto event = backend->create_event();
      backend->record(event.get(), first.get());
      backend->wait(second.get(), event.get());
    }
    backend->copy(second.get(), slabs.to.data(), slabs.device.data(), kElems * 4, kToHost);
  }
  CHECK(std::count(slabs.result(), slabs.result() + kElems, 3.0F) == kElems);
}

TEST_CASE("an event that was never recorded on the GPU is our bug, whoever asks", "[gpu]") {
  const auto backend = backend_of();
  const auto stream = backend->create_stream("stream");
  const auto event = backend->create_event();
  CHECK(thrown([&] { backend->wait(stream.get(), event.get()); }) == "assertion");
  CHECK(thrown([&] { backend->query(event.get()); }) == "assertion");
  CHECK(thrown([&] { backend->sync(event.get()); }) == "assertion");
  CHECK(thrown([&] { backend->elapsed_ms(event.get(), event.get()); }) == "assertion");
}

TEST_CASE("the time to a record not yet reached is our bug", "[gpu]") {
  const auto backend = backend_of();
  const SlowWork slow(*backend);
  const auto stream = backend->create_stream("stream");
  const auto begin = backend->create_event(), end = backend->create_event();
  backend->record(begin.get(), stream.get());
  slow.enqueue(stream.get());
  backend->record(end.get(), stream.get());
  CHECK(thrown([&] { backend->elapsed_ms(begin.get(), end.get()); }) == "assertion");
  backend->sync(end.get());
  CHECK(backend->elapsed_ms(begin.get(), end.get()) > 0);
}

TEST_CASE("a GPU copy of 0 bytes is nothing, a copy from nowhere is our bug", "[gpu]") {
  const auto backend = backend_of();
  const auto stream = backend->create_stream("stream");
  int value = 0;
  CHECK(thrown([&] { backend->copy(stream.get(), nullptr, nullptr, 0, kToDevice); }).empty());
  CHECK(thrown([&] { backend->copy(stream.get(), &value, nullptr, 4, kToHost); }) == "assertion");
}

TEST_CASE("a refused op and too little scratch do not break the CUDA backend", "[gpu]") {
  const auto backend = backend_of();
  const auto stream = backend->create_stream("stream");
  const DeviceArray<float> x(*backend, *stream, std::vector<float>(64, 1.0F));
  const TensorView view(x.data(), DType::kF32, {8, 8});
  CHECK(thrown([&] { backend->enqueue(stream.get(), Fill{}); }) == "shape: fill: x is missing, expected a tensor");
  const DeviceArray<float> y(*backend, *stream, std::vector<float>(64, 1.0F));
  const Matmul op{.a = view, .b = view, .c = {}, .d = TensorView(y.data(), DType::kF32, {8, 8})};
  CHECK(backend->scratch_bytes(op) == std::size_t{32} << 20);
  CHECK(thrown([&] {
          backend->enqueue(stream.get(), op, {x.data(), 100});
        }) == "shape: matmul: scratch has 100 bytes, expected 33554432: ask scratch_bytes()");
  backend->enqueue(stream.get(), Fill{view});
  CHECK(x.read() == std::vector<float>(64, 0.0F));
}

TEST_CASE("too little device memory is refused with what is free, and breaks nothing", "[gpu]") {
  const auto backend = backend_of();
  const std::string message = thrown([&] { backend->allocate_device(std::size_t{1} << 50, "slots"); });
  CHECK(message.find("memory: device memory for slots: 1.0 PiB are not available (") == 0);
  CHECK(message.find(" GiB are free), 0 B are in use already: ") != std::string::npos);
  const Buffer small = backend->allocate_device(1000, "small");
  CHECK(backend->device_bytes() == 1000);
  const auto stream = backend->create_stream("stream");
  backend->enqueue(stream.get(), Fill{TensorView(small.data(), DType::kF32, {250})});
  backend->sync(stream.get());
}

TEST_CASE("too little host memory is refused and breaks nothing", "[gpu]") {
  const auto backend = backend_of();
  const std::string message = thrown([&] { backend->allocate_host(std::size_t{1} << 50, "slabs"); });
  CHECK(message.find("memory: host memory for slabs: 1.0 PiB are not available, ") == 0);
  CHECK(backend->allocate_host(1, "one byte"));
}

TEST_CASE("buffers of every size are aligned and can be written to their last byte", "[gpu]") {
  for (const bool pin : {true, false}) {
    const auto backend = backend_of(pin);
    for (const std::size_t size :
         {std::size_t{1}, std::size_t{4096}, std::size_t{4097}, std::size_t{2} << 20, (std::size_t{200} << 20) + 1}) {
      CAPTURE(pin, size);
      const Buffer host = backend->allocate_host(size, "host"), device = backend->allocate_device(size, "device");
      CHECK(reinterpret_cast<std::uintptr_t>(host.data()) % Buffer::kAlignment == 0);
      CHECK(reinterpret_cast<std::uintptr_t>(device.data()) % Buffer::kAlignment == 0);
      static_cast<char*>(host.data())[size - 1] = 1;
      CHECK(backend->host_bytes() == size);
    }
    CHECK(backend->host_bytes() == 0);
    CHECK(backend->device_bytes() == 0);
  }
}

TEST_CASE("a device that is not there is refused by the registry, auto included", "[gpu]") {
  gpu_or_skip();
  for (const char* name : {"cuda", "auto"}) {
    const std::string message = thrown([&] { create_backend(name, {.device = 99}); });
    CHECK(message.find("config: device is 99: expected 0") == 0);
  }
}

TEST_CASE("auto takes the GPU, which says what it is", "[gpu]") {
  gpu_or_skip();
  const auto backend = create_backend("auto", {});
  CHECK(backend->capabilities().name == "cuda");
  CHECK(backend->capabilities().is_device);
  for (const char* part : {", compute capability ", " GiB, driver for CUDA ", ", attention auto"}) {
    CAPTURE(backend->capabilities().description);
    CHECK(backend->capabilities().description.find(part) != std::string::npos);
  }
}

TEST_CASE("synchronous launches give the same results", "[gpu]") {
  gpu_or_skip();
  CudaOptions options;
  options.sync_launches = true;
  const auto backend = create_cuda_backend(options);
  const auto stream = backend->create_stream("stream");
  const DeviceArray<float> x(*backend, *stream, {1, 2, 3});
  backend->enqueue(stream.get(), Fill{TensorView(x.data(), DType::kF32, {2})});
  CHECK(x.read() == std::vector<float>{0, 0, 3});
}
