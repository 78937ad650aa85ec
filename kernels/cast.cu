// SPDX-License-Identifier: Apache-2.0
// Conversion between f32 and bf16, nearest even; a plain copy where the types agree.
// Source: IEEE 754-2019, 5.4.2.
#include "kernels/launch_kernel.cuh"
#include "kernels/pack.cuh"

namespace ferry::kernels {
namespace {

// Policy. Eight elements at a time: 16 bytes of bf16, twice that of f32. Narrow loads need more of them in flight.
constexpr int kThreads = 256;
constexpr int kElems = 8;
template <class From>
constexpr int kPacks = sizeof(From) == 2 ? 4 : 2;

// Kernels.

template <class From, class To, bool kVector>
__global__ void __launch_bounds__(kThreads) cast_kernel(const From* x, To* y, std::int64_t n) {
  const std::int64_t first = std::int64_t{blockIdx.x} * kPacks<From> * kThreads + threadIdx.x;
  Pack<From, kElems> packs[kPacks<From>];
#pragma unroll
  for (int u = 0; u < kPacks<From>; ++u) {
    const std::int64_t i = (first + u * kThreads) * kElems;
    load<kVector>(packs[u], x + i, count_of<kElems>(n - i));
  }
#pragma unroll
  for (int u = 0; u < kPacks<From>; ++u) {
    const std::int64_t i = (first + u * kThreads) * kElems;
    float values[kElems];
    unpack(packs[u], values);
    store_values<kVector>(y + i, count_of<kElems>(n - i), values);
  }
}

template <class From, class To>
cudaError_t cast(const CastArgs& args, cudaStream_t stream) {
  const bool is_vector = is_aligned(args.x) && is_aligned(args.y);
  const auto kernel = is_vector ? cast_kernel<From, To, true> : cast_kernel<From, To, false>;
  const std::int64_t block_elems = std::int64_t{kPacks<From>} * kElems * kThreads;
  return launch(kernel, {ceil_div(args.n, block_elems), kThreads}, stream, static_cast<const From*>(args.x),
                static_cast<To*>(args.y), args.n);
}

}  // namespace

// Launchers.

cudaError_t launch_cast(const CastArgs& args, cudaStream_t stream) {
  if (args.from == args.to) {
    const auto n_bytes = static_cast<std::size_t>(args.n * size_of(args.from));
    return n_bytes == 0 ? cudaSuccess : cudaMemcpyAsync(args.y, args.x, n_bytes, cudaMemcpyDeviceToDevice, stream);
  }
  return args.from == Type::kF32 ? cast<float, __nv_bfloat16>(args, stream) : cast<__nv_bfloat16, float>(args, stream);
}

}  // namespace ferry::kernels
