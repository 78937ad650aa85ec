// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/product_sweep.h"

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/cublaslt_matmul.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/device_array.h"
#include "catch.h"
#include "core/error.h"
#include "core/rng.h"
#include "gpu_or_skip.h"

using namespace ferry;
using namespace ferry::cuda;
using ferry::test::DeviceArray;

namespace {

constexpr std::int64_t kExtent = 1024;
constexpr std::int64_t kElems = kExtent * kExtent;

/// Whole numbers from -8 to 8: sums of their products are exact in f32 in any order, but seldom in bf16.
std::vector<Bf16> whole_numbers(const char* name) {
  const CounterRng rng(3, name);
  std::vector<Bf16> values;
  for (std::uint64_t i = 0; i < kElems; ++i) values.push_back(to_bf16(std::floor(17 * rng.uniform(i)) - 8));
  return values;
}

template <class T>
TensorView square(const DeviceArray<T>& array) {
  return TensorView(array.data(), DTypeOf<T>::kValue, {kExtent, kExtent});
}

struct Gpu {
  Gpu() {
    gpu_or_skip();
    backend = create_cuda_backend(CudaOptions{});
    stream = backend->create_stream("test");
    scratch = backend->allocate_device(CublasLtMatmul::kWorkspaceBytes, "workspace");
  }
  Scratch workspace() const { return {scratch.data(), scratch.size_bytes()}; }

  std::unique_ptr<Backend> backend;
  std::unique_ptr<Stream> stream;
  Buffer scratch;
};

/// "" when the sweep is large and all its algorithms leave `want` in `d`.
template <class T>
std::string fault(const Gpu& gpu, const Matmul& op, const DeviceArray<T>& d, const std::vector<T>& want) {
  const ProductSweep sweep(gpu.stream.get(), op, gpu.workspace());
  std::size_t n_run = 0;
  for (std::size_t i = 0; i < sweep.size(); ++i) {
    gpu.backend->enqueue(gpu.stream.get(), Fill{.x = op.d});
    gpu.backend->sync(gpu.stream.get());
    if (!sweep.enqueue(i)) continue;
    ++n_run;
    const std::vector<T> got = d.read();
    if (std::memcmp(got.data(), want.data(), want.size() * sizeof(T)) != 0) {
      return fmt::format("algorithm {} of {} is wrong", i, sweep.size());
    }
  }
  return n_run >= CublasLtMatmul::kCandidates ? "" : fmt::format("only {} of {} algorithms run", n_run, sweep.size());
}

}  // namespace

TEST_CASE("every algorithm of a sweep sums in f32 and rounds once", "[gpu]") {
  const Gpu gpu;
  const std::vector<Bf16> addend = whole_numbers("c");
  const DeviceArray<Bf16> a(*gpu.backend, *gpu.stream, whole_numbers("a"));
  const DeviceArray<Bf16> b(*gpu.backend, *gpu.stream, whole_numbers("b"));
  const DeviceArray<Bf16> c(*gpu.backend, *gpu.stream, addend);
  for (const bool transpose_a : {false, true}) {
    for (const bool has_addend : {false, true}) {
      INFO("transpose_a " << transpose_a << ", addend " << has_addend);
      Matmul op{.a = square(a), .b = square(b), .c = {}, .d = {}, .transpose_a = transpose_a};
      op.transpose_b = !transpose_a;
      // A bf16 product that is added in place runs on the plain kernel.
      const DeviceArray<Bf16> plain(*gpu.backend, *gpu.stream, has_addend ? addend : std::vector<Bf16>(kElems));
      op.c = op.d = square(plain);
      gpu.backend->enqueue(gpu.stream.get(), op, gpu.workspace());
      const DeviceArray<Bf16> d(*gpu.backend, *gpu.stream, addend);
      op.c = has_addend ? square(c) : TensorView();
      op.d = square(d);
      CHECK(fault(gpu, op, d, plain.read()) == "");
    }
  }
}

TEST_CASE("no algorithm of a sweep of f32 is TF32", "[gpu]") {
  const Gpu gpu;
  const std::vector<float> values(kElems, 1.0F + 0x1p-20F);
  std::vector<float> identity(kElems);
  for (std::size_t i = 0; i < kExtent; ++i) identity[i * (kExtent + 1)] = 1;
  const DeviceArray<float> a(*gpu.backend, *gpu.stream, values), b(*gpu.backend, *gpu.stream, identity),
      d(*gpu.backend, *gpu.stream, values);
  CHECK(fault(gpu, Matmul{.a = square(a), .b = square(b), .c = {}, .d = square(d)}, d, values) == "");
}

TEST_CASE("a stream of another backend has no sweep") {
  const auto backend = create_backend("cpu", {.threads = 1});
  const auto stream = backend->create_stream("test");
  float one = 1;
  const TensorView view(&one, DType::kF32, {1, 1});
  CHECK(ProductSweep(stream.get(), Matmul{.a = view, .b = view, .c = {}, .d = view}, {}).size() == 0);
}
