// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/product_sweep.h"

#include "backend/cuda/cublaslt_matmul.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/device_array.h"
#include "catch.h"
#include "gpu_or_skip.h"

using namespace ferry;
using namespace ferry::cuda;
using ferry::test::DeviceArray;

TEST_CASE("every algorithm of a sweep computes the product", "[gpu]") {
  gpu_or_skip();
  const auto backend = create_cuda_backend(CudaOptions{});
  const auto stream = backend->create_stream("test");
  constexpr std::int64_t kExtent = 1024;
  const std::vector<Bf16> ones(kExtent * kExtent, to_bf16(1));
  const DeviceArray<Bf16> a(*backend, *stream, ones), b(*backend, *stream, ones), d(*backend, *stream, ones);
  const auto view = [](const DeviceArray<Bf16>& array) {
    return TensorView(array.data(), DType::kBf16, {kExtent, kExtent});
  };
  const Matmul op{.a = view(a), .b = view(b), .c = {}, .d = view(d), .transpose_b = true};
  const Buffer scratch = backend->allocate_device(backend->scratch_bytes(op), "workspace");

  const ProductSweep sweep(stream.get(), op, {scratch.data(), scratch.size_bytes()});
  CHECK(sweep.size() >= CublasLtMatmul::kCandidates);
  for (std::size_t i = 0; i < sweep.size(); ++i) {
    INFO(i);
    backend->enqueue(stream.get(), Fill{.x = op.d});
    backend->sync(stream.get());
    if (!sweep.enqueue(i)) continue;
    CHECK(to_f32(d.read()[7 * kExtent + 5]) == kExtent);
  }
}

TEST_CASE("a stream of another backend has no sweep") {
  const auto backend = create_backend("cpu", {.threads = 1});
  const auto stream = backend->create_stream("test");
  float one = 1;
  const TensorView view(&one, DType::kF32, {1, 1});
  CHECK(ProductSweep(stream.get(), Matmul{.a = view, .b = view, .c = {}, .d = view}, {}).size() == 0);
}
