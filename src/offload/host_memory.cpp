// SPDX-License-Identifier: Apache-2.0
// Allocation and first touch of host memory.
#include "offload/host_memory.h"

#include <algorithm>
#include <cstring>

#include "core/int_math.h"

namespace ferry {

HostMemory::Id HostMemory::add(std::string purpose, std::size_t size_bytes) {
  parts_.push_back({std::move(purpose), size_bytes, {}});
  return static_cast<Id>(parts_.size()) - 1;
}

std::size_t HostMemory::total_bytes() const {
  std::size_t total = 0;
  for (const Part& part : parts_) total += part.size_bytes;
  return total;
}

std::vector<MemoryLine> HostMemory::lines() const {
  std::vector<MemoryLine> lines;
  for (const Part& part : parts_) add_line(lines, part.purpose, part.size_bytes);
  std::ranges::stable_sort(lines, std::ranges::greater{}, &MemoryLine::size_bytes);
  return lines;
}

void HostMemory::allocate(Backend& backend, ThreadPool& pool) {
  for (Part& part : parts_) {
    part.buffer = backend.allocate_host(part.size_bytes, part.purpose);
    auto* data = static_cast<std::byte*>(part.buffer.data());
    constexpr std::int64_t kCut = std::int64_t{8} << 20;
    const auto size = static_cast<std::int64_t>(part.size_bytes);
    pool.parallel_for(ceil_div(size, kCut), [&](std::int64_t i) {
      std::memset(data + i * kCut, 0, static_cast<std::size_t>(std::min(kCut, size - i * kCut)));
    });
  }
}

}  // namespace ferry
