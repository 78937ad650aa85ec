// SPDX-License-Identifier: Apache-2.0
// Sums over warps and blocks in a fixed order.
#pragma once

namespace ferry::kernels {

inline constexpr int kWarp = 32;
inline constexpr unsigned kWholeWarp = 0xffffffffU;

/// Sum over the warp, the same bits in every lane.
__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(kWholeWarp, value, offset);
  return value;
}

/// Sum over n_warps neighbouring warps, the same bits in every thread. The block calls it as one; `sums` has room for
/// each warp of the block and is not used again before the next barrier.
__device__ __forceinline__ float group_sum(float value, float* sums, int first_warp, int n_warps) {
  const float mine = warp_sum(value);
  if (threadIdx.x % kWarp == 0) sums[threadIdx.x / kWarp] = mine;
  __syncthreads();
  float total = sums[first_warp];
  for (int warp = 1; warp < n_warps; ++warp) total += sums[first_warp + warp];
  return total;
}

/// Sum over a block of whole warps.
__device__ __forceinline__ float block_sum(float value, float* sums) {
  return group_sum(value, sums, 0, static_cast<int>(blockDim.x) / kWarp);
}

}  // namespace ferry::kernels
