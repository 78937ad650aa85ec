// SPDX-License-Identifier: Apache-2.0
// Memory of a backend: counting, alignment, ownership, refusal.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "backend/fake_ops.h"
#include "catch.h"
#include "thrown.h"

using namespace ferry;

TEST_CASE("bytes of device and host buffers are counted apart and given back") {
  FakeOps ops;
  Backend& backend = ops.backend();
  {
    const Buffer weights = backend.allocate_device(1000, "weights");
    const Buffer slab = backend.allocate_host(5000000, "slab");
    CHECK(weights.size_bytes() == 1000);
    CHECK(backend.device_bytes() == 1000);
    CHECK(backend.host_bytes() == 5000000);
  }
  CHECK(backend.device_bytes() == 0);
  CHECK(backend.host_bytes() == 0);
}

TEST_CASE("buffers of every size are aligned and writable to their last byte") {
  FakeOps ops;
  for (const std::size_t size_bytes : {1UL, 255UL, 257UL, (2UL << 20) - 1, 2UL << 20, (5UL << 20) + 3}) {
    const Buffer buffer = ops.backend().allocate_host(size_bytes, "test");
    CHECK(reinterpret_cast<std::uintptr_t>(buffer.data()) % Buffer::kAlignment == 0);
    std::memset(buffer.data(), 1, size_bytes);
  }
}

TEST_CASE("a moved buffer has one owner") {
  FakeOps ops;
  Backend& backend = ops.backend();
  Buffer first = backend.allocate_device(100, "first");
  Buffer second = backend.allocate_device(200, "second");
  void* const data = first.data();
  second = std::move(first);
  CHECK(backend.device_bytes() == 100);
  CHECK(second.data() == data);
  const Buffer third(std::move(second));
  CHECK(third.data() == data);
  CHECK(!second);  // NOLINT: a moved-from buffer is empty by contract
  CHECK(second.size_bytes() == 0);
  CHECK(backend.device_bytes() == 100);
}

TEST_CASE("a buffer of 0 bytes is empty") {
  FakeOps ops;
  CHECK(!ops.backend().allocate_device(0, "nothing"));
  CHECK(!ops.backend().allocate_host(0, "nothing"));
}

TEST_CASE("too large a buffer is an error with purpose, size, use and advice") {
  FakeOps ops;
  Backend& backend = ops.backend();
  const Buffer used = backend.allocate_device(3 << 20, "activations");
  const std::size_t too_large_bytes = std::size_t{1} << 60;
  CHECK(thrown([&] { backend.allocate_device(too_large_bytes, "weight slots"); }) ==
        "memory: device memory for weight slots: 1.0 EiB are not available, 3.0 MiB are in use already: lower "
        "batch_size or seq_len");
  CHECK(thrown([&] { backend.allocate_host(too_large_bytes, "slabs"); }) ==
        "memory: host memory for slabs: 1.0 EiB are not available, 0 B are in use already: end other programs, or "
        "choose a smaller model");
  CHECK(backend.device_bytes() == 3 << 20);
}

TEST_CASE("buffers may be freed by another thread") {
  FakeOps ops;
  Backend& backend = ops.backend();
  for (int round = 0; round < 20; ++round) {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([buffer = backend.allocate_device(64, "shared")]() mutable { buffer = Buffer(); });
    }
  }
  CHECK(backend.device_bytes() == 0);
}

#ifndef NDEBUG
TEST_CASE("fresh device memory is NaN in debug builds") {
  FakeOps ops;
  const Buffer buffer = ops.backend().allocate_device(64, "poisoned");
  CHECK(std::isnan(static_cast<float*>(buffer.data())[7]));
  CHECK(std::isnan(to_f32(static_cast<Bf16*>(buffer.data())[31])));
}
#endif
