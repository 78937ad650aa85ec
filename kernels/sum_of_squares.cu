// SPDX-License-Identifier: Apache-2.0
// Sum of squares: one sum per fixed block of elements, then one block adds the sums.
// Source: torch.nn.utils.get_total_norm.
#include "kernels/launch_kernel.cuh"
#include "kernels/pack.cuh"
#include "kernels/reduce.cuh"

namespace ferry::kernels {
namespace {

// Policy. A block of 32768 elements (64 KiB of bf16): a layer of 1B parameters' 61 million gives 1856 blocks, fourteen
// per multiprocessor of an H200, and the sums of a billion elements still take one block microseconds. Each thread adds
// its packs in order; four of them are in flight.
constexpr int kThreads = 256;
constexpr int kBlockElems = 32768;
constexpr int kPacks = 4;
constexpr int kFinalThreads = 1024;

// Kernels.

template <class T, bool kVector>
__global__ void __launch_bounds__(kThreads) sum_of_squares_kernel(const T* x, std::int64_t n, float* sums) {
  constexpr int kElems = Pack<T>::kElems;
  __shared__ float warp_sums[kThreads / kWarp];
  const std::int64_t begin = std::int64_t{blockIdx.x} * kBlockElems;
  float total = 0;
  for (int step = 0; step < kBlockElems; step += kPacks * kThreads * kElems) {
    Pack<T> packs[kPacks];
#pragma unroll
    for (int u = 0; u < kPacks; ++u) {
      const std::int64_t i = begin + step + (u * kThreads + static_cast<int>(threadIdx.x)) * kElems;
      load<kVector>(packs[u], x + i, count_of<kElems>(n - i));
    }
#pragma unroll
    for (int u = 0; u < kPacks; ++u) {
      float values[kElems];
      unpack(packs[u], values);
#pragma unroll
      for (int i = 0; i < kElems; ++i) total = fmaf(values[i], values[i], total);
    }
  }
  total = block_sum(total, warp_sums);
  if (threadIdx.x == 0) sums[blockIdx.x] = total;
}

__global__ void __launch_bounds__(kFinalThreads)
    sum_of_squares_final_kernel(const float* sums, std::int64_t n, float* y) {
  __shared__ float warp_sums[kFinalThreads / kWarp];
  float total = 0;
#pragma unroll 4
  for (std::int64_t i = threadIdx.x; i < n; i += kFinalThreads) total += sums[i];
  total = block_sum(total, warp_sums);
  if (threadIdx.x == 0) *y = total;
}

std::int64_t n_blocks(std::int64_t n) { return ceil_div(n, kBlockElems); }

}  // namespace

// Launchers.

std::size_t sum_of_squares_scratch_bytes(std::int64_t n) {
  return static_cast<std::size_t>(n_blocks(n)) * sizeof(float);
}

cudaError_t launch_sum_of_squares(const SumOfSquaresArgs& args, cudaStream_t stream) {
  auto* const sums = static_cast<float*>(args.scratch);
  const cudaError_t error = with_type(args.type, is_aligned(args.x), [&]<class T, bool kVector>() {
    return launch(sum_of_squares_kernel<T, kVector>, {n_blocks(args.n), kThreads}, stream,
                  static_cast<const T*>(args.x), args.n, sums);
  });
  if (error != cudaSuccess) return error;
  return launch(sum_of_squares_final_kernel, {1, kFinalThreads}, stream, sums, n_blocks(args.n), args.y);
}

}  // namespace ferry::kernels
