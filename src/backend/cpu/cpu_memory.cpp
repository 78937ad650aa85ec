// SPDX-License-Identifier: Apache-2.0
// Large blocks come straight from mmap, so that freeing one gives it back to the system at once.
#include "backend/cpu/cpu_memory.h"

#include <sys/mman.h>

#include <cstdlib>

#include "backend/backend.h"

namespace ferry::cpu {
namespace {

constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;  // of x86-64

}  // namespace

void* allocate_memory(std::size_t size_bytes) {
  if (size_bytes < kHugePageBytes) {
    const std::size_t rounded = (size_bytes + Buffer::kAlignment - 1) / Buffer::kAlignment * Buffer::kAlignment;
    return std::aligned_alloc(Buffer::kAlignment, rounded);
  }
  void* data = mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return nullptr;
  madvise(data, size_bytes, MADV_HUGEPAGE);  // advice only: without huge pages the memory works the same
  return data;
}

void free_memory(void* data, std::size_t size_bytes) noexcept {
  if (size_bytes < kHugePageBytes) {
    std::free(data);
  } else {
    munmap(data, size_bytes);
  }
}

}  // namespace ferry::cpu
