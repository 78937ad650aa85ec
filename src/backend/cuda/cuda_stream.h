// SPDX-License-Identifier: Apache-2.0
// The CUDA backend's stream.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "backend/backend.h"
#include "backend/cuda/cuda_memory.h"
#include "backend/cuda/cuda_raii.h"
#include "backend/cuda/nvtx.h"

namespace ferry::cuda {

class CudaStream final : public Stream {
 public:
  /// On the calling thread's current device, which is `device`. Throws Error{kDevice}.
  CudaStream(int device, const std::string& name) : device_(device) {
    // Non-blocking: no hidden order with the default stream.
    FERRY_CUDA_CHECK(cudaStreamCreateWithFlags(stream_.receive(), cudaStreamNonBlocking));
    name_stream(stream_.get(), name.c_str());
  }
  ~CudaStream() override {
    try_use_device(device_);
    if (cudaStreamSynchronize(stream_.get()) != cudaSuccess) cudaGetLastError();  // reported where it arose
  }
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  int device() const { return device_; }
  cudaStream_t get() const { return stream_.get(); }
  StagedCopies& staged_copies() { return staged_copies_; }

 private:
  const int device_;
  StagedCopies staged_copies_;
  StreamOwner stream_;
};

}  // namespace ferry::cuda
