// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/cuda_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "backend/backend.h"
#include "catch.h"

using namespace ferry;
using namespace ferry::cuda;

namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

/// Whether the page of an address is mapped: mincore fails for others.
bool mapped(const void* address) {
  unsigned char resident = 0;
  const auto page = reinterpret_cast<std::uintptr_t>(address) / 4096 * 4096;
  return mincore(reinterpret_cast<void*>(page), 1, &resident) == 0;
}

}  // namespace

TEST_CASE("host slabs of any size are aligned, writable from end to end, and given back") {
  HostMemory memory(false, 2);
  for (const std::size_t size :
       {std::size_t{1}, std::size_t{4096}, std::size_t{4097}, 2 * kMiB - 1, 2 * kMiB, 3 * kMiB + 5, 130 * kMiB + 1}) {
    CAPTURE(size);
    auto* const data = static_cast<std::byte*>(memory.allocate(size));
    REQUIRE(data != nullptr);
    CHECK(reinterpret_cast<std::uintptr_t>(data) % Buffer::kAlignment == 0);
    if (size >= 2 * kMiB) CHECK(reinterpret_cast<std::uintptr_t>(data) % (2 * kMiB) == 0);
    CHECK((data[0] == std::byte{0} && data[size - 1] == std::byte{0}));
    std::memset(data, 1, size);
    CHECK(!memory.pinned(data, size));
    memory.free(data, size);
    CHECK(!mapped(data));
    CHECK(!mapped(data + size - 1));
  }
}

TEST_CASE("a slab is touched when it is allocated") {
  HostMemory memory(false, 2);
  const std::size_t size = 65 * kMiB + 1;
  auto* const data = static_cast<std::byte*>(memory.allocate(size));
  REQUIRE(data != nullptr);
  std::vector<unsigned char> resident(size / 4096 + 1);
  REQUIRE(mincore(data, size, resident.data()) == 0);
  CHECK(std::count(resident.begin(), resident.end(), 0) == 0);
  memory.free(data, size);
}

TEST_CASE("a slab larger than the address space is refused") {
  HostMemory memory(false, 2);
  CHECK(memory.allocate(std::size_t{1} << 50) == nullptr);
}

TEST_CASE("where the driver pins nothing the slab is usable and known as pageable") {
  HostMemory memory(true, 2);
  void* const data = memory.allocate(3 * kMiB);
  REQUIRE(data != nullptr);
  int n_devices = 0;
  const bool has_gpu = cudaGetDeviceCount(&n_devices) == cudaSuccess && n_devices > 0;
  CHECK(memory.pinned(data, 3 * kMiB) == has_gpu);
  CHECK(!memory.pinned(data, 3 * kMiB + 4096));
  CHECK(!memory.pinned(static_cast<std::byte*>(data) - 1, 1));
  memory.free(data, 3 * kMiB);
}
