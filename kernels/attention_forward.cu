// SPDX-License-Identifier: Apache-2.0
// Fused attention forward for every device of compute capability 8.0 or later: a warp per 16 queries, tiles of keys and
// values copied while the tile before is in work.
// Source: Dao 2023, arXiv:2307.08691, algorithm 1.
#include "kernels/attention_mma.cuh"
#include "kernels/attention_parts.h"
#include "kernels/launch_kernel.cuh"

namespace ferry::kernels::attention {
namespace {

using std::int64_t;
using std::uint32_t;

// Policy.
template <int kWidth_, int kWarps_, int kKeys_>
struct MmaForward {
  static constexpr int kWidth = kWidth_;
  static constexpr int kThreads = kWarps_ * kLanes;
  static constexpr int kRows = 16 * kWarps_;
  static constexpr int kKeys = kKeys_;
  static constexpr int kQBytes = kTileBytes<kRows, kWidth>;
  static constexpr int kKBytes = kTileBytes<kKeys, kWidth>;
  static constexpr int kSharedBytes = kQBytes + 4 * kKBytes;
};

// Kernel.

/// Grid: one block per C::kRows queries, head and sequence.
template <class C>
__global__ void __launch_bounds__(C::kThreads)
    attention_forward_kernel(const __grid_constant__ AttentionPlainForwardArgs args, Sizes sizes) {
  extern __shared__ __align__(128) unsigned char memory[];
  const uint32_t q = shared_address(memory), k = q + C::kQBytes, v = k + 2 * C::kKBytes;
  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  QueryTile tile;
  if (!query_tile<C::kRows, C::kKeys>(sizes, 0, tile)) return;
  const int kv_head = tile.head / (sizes.n_heads / sizes.n_kv_heads);
  const int first_row = tile.first + warp * 16 + sizes.n_keys - sizes.n_queries;
  const float scale2 = args.shape.scale * kLog2E;
  const auto copy_keys = [&](int j) {
    copy_tile_async<C::kKeys, C::kWidth, C::kThreads>(k + j % 2 * C::kKBytes, args.k, tile.batch, kv_head, j * C::kKeys,
                                                      sizes.n_keys);
    copy_tile_async<C::kKeys, C::kWidth, C::kThreads>(v + j % 2 * C::kKBytes, args.v, tile.batch, kv_head, j * C::kKeys,
                                                      sizes.n_keys);
    copy_async_commit();
  };
  copy_tile_async<C::kRows, C::kWidth, C::kThreads>(q, args.q, tile.batch, tile.head, tile.first, sizes.n_queries);
  copy_keys(0);
  float o[C::kWidth / 2] = {};
  Softmax softmax;
  for (int j = 0; j < tile.n_key_tiles; ++j) {
    copy_async_wait();
    __syncthreads();
    if (j + 1 < tile.n_key_tiles) copy_keys(j + 1);
    float s[C::kKeys / 2], kept[2];
    uint32_t weights[C::kKeys / 4];
    multiply_rows<C::kWidth, C::kRows, C::kKeys>(s, q, warp * 16, k + j % 2 * C::kKBytes);
    if (j * C::kKeys + C::kKeys - 1 > first_row) mask_keys(s, first_row, j * C::kKeys);
    softmax_step(s, scale2, softmax, kept);
    scale_rows(o, kept);
    pack_fragment(weights, s);
    multiply_columns<C::kKeys, C::kWidth>(o, weights, v + j % 2 * C::kKBytes);
  }
  float inverse[2], lse[2];
  softmax_end(softmax, scale2, inverse, lse);
  scale_rows(o, inverse);
  const int first = tile.first + warp * 16;
  store_warp_rows<C::kRows, C::kWidth>(args.o, tile.batch, tile.head, first, sizes.n_queries, q, warp * 16, o);
  float* const out = args.lse + (static_cast<int64_t>(tile.batch) * sizes.n_heads + tile.head) * sizes.n_queries;
  for (int r = 0; r < 2; ++r) {
    const int row = first + lane / 4 + 8 * r;
    if (lane % 4 == 0 && row < sizes.n_queries) out[row] = lse[r];
  }
}

// Launcher.

template <class C>
cudaError_t mma_forward(const AttentionPlainForwardArgs& args, cudaStream_t stream) {
  const AttentionShape& s = args.shape;
  const auto kernel = attention_forward_kernel<C>;
  const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, C::kSharedBytes);
  if (error != cudaSuccess) return error;
  const int64_t n_blocks = ceil_div(s.n_queries, C::kRows) * s.n_heads * s.batch;
  return launch(kernel, {n_blocks, C::kThreads, C::kSharedBytes}, stream, args, sizes_of(s));
}

}  // namespace

cudaError_t launch_attention_mma_forward(const AttentionForwardArgs& args, cudaStream_t stream) {
  switch (args.shape.width) {
    case 64: return mma_forward<MmaForward<64, 4, 64>>(args, stream);
    case 80: return mma_forward<MmaForward<80, 4, 64>>(args, stream);
    case 96: return mma_forward<MmaForward<96, 4, 64>>(args, stream);
    case 128: return mma_forward<MmaForward<128, 4, 64>>(args, stream);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace ferry::kernels::attention
