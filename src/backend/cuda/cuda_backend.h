// SPDX-License-Identifier: Apache-2.0
// The backend of one NVIDIA GPU.
#pragma once

#include <filesystem>
#include <memory>

#include "backend/backend.h"

namespace ferry::cuda {

struct CudaOptions {
  int device = 0;                      // among those that CUDA_VISIBLE_DEVICES shows
  int threads = 0;                     // that touch fresh host memory; 0 = all that are available
  bool pin_memory = true;              // false: host memory stays pageable, copies are staged
  bool sync_launches = false;          // wait for each op and name the one that fails
  std::filesystem::path choices_file;  // of matrix products; empty = none
  AttentionChoice attention = AttentionChoice::kAuto;
};

/// What the environment adds: FERRY_PIN_MEMORY=0, FERRY_SYNC_LAUNCHES=1, FERRY_MATMUL_CACHE. Throws Error{kConfig} for
/// another value of the first two than 0 or 1.
CudaOptions cuda_options(const BackendOptions& options);

/// Streams are CUDA streams, events keep time, device memory comes from cudaMalloc, host memory from HostMemory. Debug
/// builds fill new device memory with NaN. Throws Error{kDevice | kConfig} where the device cannot be used.
std::unique_ptr<Backend> create_cuda_backend(const CudaOptions& options);

/// Devices that the driver shows this process; 0 where there is no driver or it cannot be used.
int cuda_device_count();

}  // namespace ferry::cuda
