// SPDX-License-Identifier: Apache-2.0
// Slabs are populated before they are registered: pinning untouched memory would fault it in page by page, in one
// thread.
#include "backend/cuda/cuda_memory.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>

#include "core/error.h"
#include "core/log.h"
#include "core/thread_pool.h"

namespace ferry::cuda {
namespace {

constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;  // of x86-64
// One thread touches this much in about 10 ms; more is shared out, in pieces of this size.
constexpr std::size_t kTouchBytes = std::size_t{64} << 20;

std::size_t round_up(std::size_t n, std::size_t unit) { return (n + unit - 1) / unit * unit; }

std::size_t page_bytes() {
  static const auto size_bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return size_bytes;
}

/// Whole pages, beginning on a huge page where they could fill one. nullptr when there is no room.
std::byte* map_pages(std::size_t size_bytes) {
  const std::size_t spare_bytes = size_bytes >= kHugePageBytes ? kHugePageBytes : 0;
  void* mapped = mmap(nullptr, size_bytes + spare_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  auto* const begin = static_cast<std::byte*>(mapped);
  if (spare_bytes == 0) return begin;
  const std::size_t skipped_bytes =
      (kHugePageBytes - reinterpret_cast<std::uintptr_t>(begin) % kHugePageBytes) % kHugePageBytes;
  if (skipped_bytes > 0) munmap(begin, skipped_bytes);
  if (skipped_bytes < spare_bytes) munmap(begin + skipped_bytes + size_bytes, spare_bytes - skipped_bytes);
  madvise(begin + skipped_bytes, size_bytes, MADV_HUGEPAGE);  // advice only: smaller pages work the same
  return begin + skipped_bytes;
}

/// Gives each page memory of its own; false when there is not enough.
bool populate(std::byte* data, std::size_t size_bytes) {
#ifdef MADV_POPULATE_WRITE
  if (madvise(data, size_bytes, MADV_POPULATE_WRITE) == 0) return true;
  if (errno != EINVAL) return false;
#endif
  // A kernel before 5.14.
  for (std::size_t offset = 0; offset < size_bytes; offset += page_bytes()) {
    *reinterpret_cast<volatile std::byte*>(data + offset) = std::byte{0};
  }
  return true;
}

bool populate_in_parallel(std::byte* data, std::size_t size_bytes, int n_threads) {
  const auto n_pieces = static_cast<std::int64_t>((size_bytes + kTouchBytes - 1) / kTouchBytes);
  if (n_pieces == 1) return populate(data, size_bytes);
  std::atomic<bool> enough = true;
  ThreadPool pool(static_cast<int>(std::min<std::int64_t>(n_pieces, n_threads)));
  pool.parallel_for(n_pieces, [&](std::int64_t i) {
    const std::size_t begin = static_cast<std::size_t>(i) * kTouchBytes;
    if (!populate(data + begin, std::min(kTouchBytes, size_bytes - begin))) enough = false;
  });
  return enough;
}

std::string memlock_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "unlimited";
  return fmt::format("{} KiB", limit.rlim_cur / 1024);
}

/// The argument of run_host_copy, which ends it.
struct HostCopy {
  void* destination;
  const void* source;
  std::size_t size_bytes;
};

void CUDART_CB run_host_copy(void* argument) {
  const std::unique_ptr<HostCopy> copy(static_cast<HostCopy*>(argument));
  std::memcpy(copy->destination, copy->source, copy->size_bytes);
}

void enqueue_host_copy(cudaStream_t stream, const HostCopy& copy) {
  auto argument = std::make_unique<HostCopy>(copy);
  FERRY_CUDA_CHECK(cudaLaunchHostFunc(stream, run_host_copy, argument.get()));
  argument.release();
}

}  // namespace

void* HostMemory::allocate(std::size_t size_bytes) {
  const std::size_t mapped_bytes = round_up(size_bytes, page_bytes());
  std::byte* const data = map_pages(mapped_bytes);
  if (data == nullptr) return nullptr;
  if (!populate_in_parallel(data, mapped_bytes, n_threads_)) {
    munmap(data, mapped_bytes);
    return nullptr;
  }
  if (pin_ && register_slab(data, mapped_bytes)) {
    const std::scoped_lock lock(mutex_);
    pinned_[reinterpret_cast<std::uintptr_t>(data)] = mapped_bytes;
  }
  return data;
}

bool HostMemory::register_slab(void* data, std::size_t size_bytes) {
  const cudaError_t status = cudaHostRegister(data, size_bytes, cudaHostRegisterPortable);
  if (status == cudaSuccess) return true;
  cudaGetLastError();  // else the next launch would report it as its own
  const std::scoped_lock lock(mutex_);
  if (!std::exchange(refused_, true)) {
    log::warn(
        "cannot pin {:.1f} MiB of host memory ({}; memlock limit {}): copies go through a small pinned buffer and are "
        "slower. Raise the limit (ulimit -l unlimited; docker run --ulimit memlock=-1), or leave more memory free",
        static_cast<double>(size_bytes) / (1 << 20), cudaGetErrorName(status), memlock_limit());
  }
  return false;
}

void HostMemory::free(void* data, std::size_t size_bytes) noexcept {
  bool was_pinned = false;
  {
    const std::scoped_lock lock(mutex_);
    was_pinned = pinned_.erase(reinterpret_cast<std::uintptr_t>(data)) > 0;
  }
  if (was_pinned && cudaHostUnregister(data) != cudaSuccess) cudaGetLastError();  // after a sticky error
  munmap(data, round_up(size_bytes, page_bytes()));
}

bool HostMemory::pinned(const void* data, std::size_t size_bytes) const {
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  const std::scoped_lock lock(mutex_);
  auto slab = pinned_.upper_bound(begin);
  if (slab == pinned_.begin()) return false;
  --slab;
  return begin + size_bytes <= slab->first + slab->second;
}

void* StagedCopies::buffer() {
  if (buffer_.get() == nullptr) FERRY_CUDA_CHECK(cudaHostAlloc(buffer_.receive(), kPieceBytes, cudaHostAllocDefault));
  return buffer_.get();
}

// One buffer is enough: within a stream a piece leaves the buffer before the next enters it.

void StagedCopies::to_device(cudaStream_t stream, void* destination, const void* source, std::size_t size_bytes) {
  void* const staging = buffer();
  for (std::size_t begin = 0; begin < size_bytes; begin += kPieceBytes) {
    const std::size_t piece_bytes = std::min(kPieceBytes, size_bytes - begin);
    enqueue_host_copy(stream, {staging, static_cast<const std::byte*>(source) + begin, piece_bytes});
    FERRY_CUDA_CHECK(cudaMemcpyAsync(static_cast<std::byte*>(destination) + begin, staging, piece_bytes,
                                     cudaMemcpyHostToDevice, stream));
  }
}

void StagedCopies::to_host(cudaStream_t stream, void* destination, const void* source, std::size_t size_bytes) {
  void* const staging = buffer();
  for (std::size_t begin = 0; begin < size_bytes; begin += kPieceBytes) {
    const std::size_t piece_bytes = std::min(kPieceBytes, size_bytes - begin);
    FERRY_CUDA_CHECK(cudaMemcpyAsync(staging, static_cast<const std::byte*>(source) + begin, piece_bytes,
                                     cudaMemcpyDeviceToHost, stream));
    enqueue_host_copy(stream, {static_cast<std::byte*>(destination) + begin, staging, piece_bytes});
  }
}

}  // namespace ferry::cuda
