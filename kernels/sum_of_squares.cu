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

// Maths.

/// Sets to 0 those of a pack's values that lie in skipped rows. The first is element i of x; `count` of them are.
template <int kElems>
__device__ __forceinline__ void clear_skipped(const SumOfSquaresArgs& args, std::int64_t i, int count,
                                              float (&values)[kElems]) {
  if (count == 0) return;
  std::int64_t row = i / args.width;              // 32-bit where both fit
  std::int64_t end = (row + 1) * args.width - i;  // of the row, from the pack's first element
  bool skipped = args.skip[row] != 0;
#pragma unroll
  for (int j = 0; j < kElems; ++j) {
    if (j == end && j < count) {
      ++row;
      end += args.width;
      skipped = args.skip[row] != 0;
    }
    if (skipped) values[j] = 0;
  }
}

// Kernels.

/// kSkip: some rows count as 0.
template <class T, bool kVector, bool kSkip>
__global__ void __launch_bounds__(kThreads) sum_of_squares_kernel(const SumOfSquaresArgs args, float* sums) {
  constexpr int kElems = Pack<T>::kElems;
  __shared__ float warp_sums[kThreads / kWarp];
  const std::int64_t begin = std::int64_t{blockIdx.x} * kBlockElems;
  const T* const x = static_cast<const T*>(args.x);
  float total = 0;
  for (int step = 0; step < kBlockElems; step += kPacks * kThreads * kElems) {
    const std::int64_t first = begin + step + static_cast<int>(threadIdx.x) * kElems;
    Pack<T> packs[kPacks];
#pragma unroll
    for (int u = 0; u < kPacks; ++u) {
      const std::int64_t i = first + u * kThreads * kElems;
      load<kVector>(packs[u], x + i, count_of<kElems>(args.n - i));
    }
#pragma unroll
    for (int u = 0; u < kPacks; ++u) {
      float values[kElems];
      unpack(packs[u], values);
      if constexpr (kSkip) {
        const std::int64_t i = first + u * kThreads * kElems;
        clear_skipped(args, i, count_of<kElems>(args.n - i), values);
      }
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
    const auto kernel =
        args.skip == nullptr ? sum_of_squares_kernel<T, kVector, false> : sum_of_squares_kernel<T, kVector, true>;
    return launch(kernel, {n_blocks(args.n), kThreads}, stream, args, sums);
  });
  if (error != cudaSuccess) return error;
  return launch(sum_of_squares_final_kernel, {1, kFinalThreads}, stream, sums, n_blocks(args.n), args.y);
}

}  // namespace ferry::kernels
