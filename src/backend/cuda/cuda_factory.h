// SPDX-License-Identifier: Apache-2.0
// The door to the CUDA backend; no CUDA header is seen through it.
#pragma once

#include <memory>

#include "backend/backend.h"

namespace ferry {

/// Throws Error{kDevice} where there is no usable GPU or ferry was built without CUDA.
std::unique_ptr<Backend> create_cuda_backend(const BackendOptions& options);

/// GPUs that the driver shows this process; 0 where there is none or ferry was built without CUDA.
int cuda_device_count();

}  // namespace ferry
