// SPDX-License-Identifier: Apache-2.0
// Host memory that the GPU copies from and to, and copies of memory that could not be pinned.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

#include "backend/cuda/cuda_raii.h"

namespace ferry::cuda {

/// Slabs of host memory: mapped in huge pages, touched by all threads, then registered with the driver (ten times
/// faster than cudaHostAlloc). Rounded up to whole pages, never to a power of two. Any thread may call.
class HostMemory {
 public:
  /// Without `pin` nothing is registered. `n_threads` touch large slabs.
  HostMemory(bool pin, int n_threads) : pin_(pin), n_threads_(n_threads) {}
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  /// nullptr when there is not enough memory. Where the driver refuses to pin it, a warning says so once and the slab
  /// stays pageable. The calling thread has a current device. `size_bytes` >= 1.
  void* allocate(std::size_t size_bytes);
  /// `size_bytes` as it was allocated.
  void free(void* data, std::size_t size_bytes) noexcept;

  /// Whether the whole range lies in one pinned slab; only then may the driver copy it asynchronously.
  bool pinned(const void* data, std::size_t size_bytes) const;

 private:
  bool register_slab(void* data, std::size_t size_bytes);

  const bool pin_;
  const int n_threads_;
  mutable std::mutex mutex_;
  std::map<std::uintptr_t, std::size_t> pinned_;  // guarded by mutex_: slabs by address
  bool refused_ = false;                          // guarded by mutex_
};

/// Copies of pageable memory on one stream, in stream order, through a small pinned buffer: the driver's own copies of
/// such memory read it when they are enqueued, not when the stream gets there. One thread at a time; the stream has
/// finished its work before this ends.
class StagedCopies {
 public:
  static constexpr std::size_t kPieceBytes = std::size_t{4} << 20;

  /// Both enqueue and return. Throw Error{kDevice}, also where not even the buffer can be pinned.
  void to_device(cudaStream_t stream, void* destination, const void* source, std::size_t size_bytes);
  void to_host(cudaStream_t stream, void* destination, const void* source, std::size_t size_bytes);

 private:
  void* buffer();

  PinnedMemoryOwner buffer_;  // of kPieceBytes, from the first copy on
};

}  // namespace ferry::cuda
