// SPDX-License-Identifier: Apache-2.0
// Copies in the background: they arrive, are counted, end with their object, and tell their failure.
#include "train/copy_load.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "catch.h"
#include "offload/forwarding_backend.h"
#include "thrown.h"

namespace ferry {
namespace {

constexpr std::size_t kPiece = 1000;
constexpr std::size_t kBytes = 4500;  // four whole pieces

/// Counts copies, and fails from the hundredth on where that is asked for.
class CountingBackend : public test::ForwardingBackend {
 public:
  explicit CountingBackend(bool fails = false)
      : ForwardingBackend(create_backend("cpu", {.threads = 1})), fails_(fails) {}
  void copy(StreamRef stream, void* destination, const void* source, std::size_t size_bytes,
            CopyDirection direction) override {
    FERRY_CHECK(!fails_ || n_copies < 100, kDevice, "the bus is gone");
    ++n_copies;
    ForwardingBackend::copy(stream, destination, source, size_bytes, direction);
  }
  std::atomic<int> n_copies = 0;

 private:
  const bool fails_;
};

struct Fixture {
  explicit Fixture(bool fails = false) : backend(fails) {
    std::ranges::fill(host_bytes(), std::byte{7});
    std::ranges::fill(device_bytes(), std::byte{9});
  }
  std::span<std::byte> host_bytes() const { return {static_cast<std::byte*>(host.data()), kBytes}; }
  std::span<std::byte> device_bytes() const { return {static_cast<std::byte*>(device.data()), kBytes}; }
  std::unique_ptr<CopyLoad> start(CopyDirection direction) {
    return std::make_unique<CopyLoad>(backend, direction, CopyLoad::Places{host_bytes(), device_bytes()}, kPiece);
  }

  CountingBackend backend;
  Buffer host = backend.allocate_host(kBytes, "test");
  Buffer device = backend.allocate_device(kBytes, "test");
};

}  // namespace

TEST_CASE("copies walk through whole pieces of both places, one way") {
  for (const CopyDirection direction : {CopyDirection::kHostToDevice, CopyDirection::kDeviceToHost}) {
    Fixture f;
    std::vector<std::unique_ptr<CopyLoad>> loads;
    loads.push_back(f.start(direction));
    CHECK(copy_rates(loads, 0).at(0) > 0);
    loads.clear();
    const bool up = direction == CopyDirection::kHostToDevice;
    const auto bytes = up ? f.device_bytes() : f.host_bytes();
    const std::byte arrived{up ? std::uint8_t{7} : std::uint8_t{9}};
    const std::byte before{up ? std::uint8_t{9} : std::uint8_t{7}};
    CHECK(std::ranges::count(bytes.first(4 * kPiece), arrived) == 4 * kPiece);
    CHECK(std::ranges::count(bytes.last(kBytes - 4 * kPiece), before) == kBytes - 4 * kPiece);
  }
}

TEST_CASE("what has arrived is counted, and the end of a load is the end of its copies") {
  Fixture f;
  double bytes = 0;
  {
    const auto load = f.start(CopyDirection::kHostToDevice);
    while (load->progress().bytes < 20 * kPiece) std::this_thread::yield();
    bytes = load->progress().bytes;
  }
  const int n_copies = f.backend.n_copies;
  CHECK(n_copies * kPiece >= bytes);
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  CHECK(f.backend.n_copies == n_copies);
}

TEST_CASE("what comes before a load and after it is ordered with its copies") {
  const auto backend = create_backend("trace:cpu", {.threads = 1});
  const Buffer host = backend->allocate_host(kBytes, "test");
  const Buffer device = backend->allocate_device(kBytes, "test");
  const auto stream = backend->create_stream("fill");
  const auto fill = [&] {
    backend->enqueue(stream.get(), Fill{.x = TensorView(device.data(), DType::kF32, {kBytes / 4})});
    backend->sync(stream.get());
  };
  fill();
  for (int i = 0; i < 2; ++i) {
    std::vector<std::unique_ptr<CopyLoad>> loads;
    loads.push_back(std::make_unique<CopyLoad>(*backend, CopyDirection::kHostToDevice,
                                               CopyLoad::Places{{static_cast<std::byte*>(host.data()), kBytes},
                                                                {static_cast<std::byte*>(device.data()), kBytes}},
                                               kPiece));
    CHECK(thrown([&] { copy_rates(loads, 0); }).empty());
  }
  CHECK(thrown(fill).empty());
}

TEST_CASE("a copy that fails is reported to whoever measures") {
  Fixture f(true);
  std::vector<std::unique_ptr<CopyLoad>> loads;
  loads.push_back(f.start(CopyDirection::kHostToDevice));
  CHECK(thrown([&] { copy_rates(loads, 3600); }) == "device: the bus is gone");
}

}  // namespace ferry
