// SPDX-License-Identifier: Apache-2.0
// Owners and checks of the CUDA runtime. Owners are move-only and never throw when they end; the raw handles
// (cudaStream_t, cudaEvent_t) are their views and pass by value.
#pragma once

#include <cuda_runtime_api.h>

#include <utility>

namespace ferry::cuda {

/// Error{kDevice}: the function called, the error's name and meaning, what to try. Clears the thread's last error.
[[noreturn]] void throw_cuda_error(cudaError_t status, const char* call);

/// Makes `device` the calling thread's current one; the runtime keeps that choice per thread, starting at 0.
void use_device(int device);
/// The same for destructors: false when it fails.
bool try_use_device(int device) noexcept;

/// A handle and the function that ends it.
template <class Handle, auto kDestroy>
class Owner {
 public:
  Owner() = default;
  explicit Owner(Handle handle) : handle_(handle) {}
  Owner(Owner&& other) noexcept : handle_(std::exchange(other.handle_, Handle{})) {}
  Owner& operator=(Owner&& other) noexcept {
    Owner taken(std::move(other));
    std::swap(handle_, taken.handle_);
    return *this;
  }
  ~Owner() {
    if (handle_ != Handle{}) static_cast<void>(kDestroy(handle_));  // a failure here was reported where it arose
  }

  Handle get() const { return handle_; }
  /// Where a create function stores its result. The owner is empty before.
  Handle* receive() { return &handle_; }

 private:
  Handle handle_{};
};

using StreamOwner = Owner<cudaStream_t, cudaStreamDestroy>;
using EventOwner = Owner<cudaEvent_t, cudaEventDestroy>;
using DeviceMemoryOwner = Owner<void*, cudaFree>;
using PinnedMemoryOwner = Owner<void*, cudaFreeHost>;

}  // namespace ferry::cuda

/// Every call of the CUDA runtime goes through this, unless its status is looked at.
#define FERRY_CUDA_CHECK(call)                                                             \
  do {                                                                                     \
    if (const cudaError_t ferry_status = (call); ferry_status != cudaSuccess) [[unlikely]] \
      ::ferry::cuda::throw_cuda_error(ferry_status, #call);                                \
  } while (false)
