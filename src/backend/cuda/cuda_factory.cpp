// SPDX-License-Identifier: Apache-2.0
// The CUDA backend as the registry asks for it.
#include "backend/cuda/cuda_factory.h"

#include "backend/cuda/cuda_backend.h"

namespace ferry {

std::unique_ptr<Backend> create_cuda_backend(const BackendOptions& options) {
  return cuda::create_cuda_backend(cuda::cuda_options(options));
}

int cuda_device_count() { return cuda::cuda_device_count(); }

}  // namespace ferry
