// SPDX-License-Identifier: Apache-2.0
// Stands in for the CUDA backend in a build without CUDA.
#include "backend/cuda/cuda_factory.h"
#include "backend/cuda/product_sweep.h"
#include "core/error.h"

namespace ferry {

std::unique_ptr<Backend> create_cuda_backend(const BackendOptions&) {
  detail::throw_error(ErrorKind::kDevice,
                      "this ferry was built without CUDA: build it where nvcc is installed, or use --backend cpu");
}

int cuda_device_count() { return 0; }

namespace cuda {

struct ProductSweep::State {};

ProductSweep::ProductSweep(StreamRef, const Matmul&, Scratch) {}

ProductSweep::~ProductSweep() = default;

std::size_t ProductSweep::size() const { return 0; }

bool ProductSweep::enqueue(std::size_t) const { return false; }

}  // namespace cuda
}  // namespace ferry
