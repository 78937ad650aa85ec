// SPDX-License-Identifier: Apache-2.0
// Fused attention backward for every device of compute capability 8.0 or later: delta, then d_k and d_v by tiles of
// keys, then d_q by tiles of queries. The last two form the probabilities anew and need no sums across blocks.
// Source: Dao 2023, arXiv:2307.08691, algorithm 2.
#include "kernels/attention_mma.cuh"
#include "kernels/attention_parts.h"
#include "kernels/launch_kernel.cuh"
#include "kernels/pack.cuh"

namespace ferry::kernels::attention {
namespace {

using std::int64_t;
using std::uint32_t;

// Policy.
template <int kWidth_, int kWarps_, int kTile_>
struct MmaBackward {
  static constexpr int kWidth = kWidth_;
  static constexpr int kThreads = kWarps_ * kLanes;
  static constexpr int kRows = 16 * kWarps_;  // owned by the block: keys, or queries
  static constexpr int kTile = kTile_;        // streamed: queries, or keys
  static constexpr int kOwnBytes = kTileBytes<kRows, kWidth>;
  static constexpr int kStreamBytes = kTileBytes<kTile, kWidth>;
  static constexpr int kStageBytes = 2 * kStreamBytes + 2 * 4 * kTile;
  static constexpr int kSharedBytes = 2 * kOwnBytes + 2 * kStageBytes;
};

constexpr int kDeltaThreads = 128;
constexpr int kDeltaLanes = 8;  // of one row

struct MmaBackwardParams {
  AttentionPlainBackwardArgs args;
  Sizes sizes;
  int padded_queries;
  const float* lse2;
  const float* delta;
};

// Kernels.

/// lse2 = lse * log2(e) and delta = sum over D of d_o * o; infinity and 0 in the padding. Grid: kDeltaLanes threads per
/// padded query row and head.
__global__ void __launch_bounds__(kDeltaThreads)
    attention_delta_kernel(const __grid_constant__ AttentionPlainBackwardArgs args, int padded_queries, float* lse2,
                           float* delta) {
  const AttentionShape& s = args.shape;
  const int64_t index = (static_cast<int64_t>(blockIdx.x) * kDeltaThreads + threadIdx.x) / kDeltaLanes;
  const int lane = threadIdx.x % kDeltaLanes;
  const int64_t row = index % padded_queries, head = index / padded_queries % s.n_heads;
  const int64_t batch = index / padded_queries / s.n_heads;
  if (batch >= s.batch) return;
  float sum = 0;
  if (row < s.n_queries) {
    const __nv_bfloat16* const o = head_row<const __nv_bfloat16>(args.o, batch, row, head);
    const __nv_bfloat16* const d_o = head_row<const __nv_bfloat16>(args.d_o, batch, row, head);
    for (int column = lane * 8; column < s.width; column += kDeltaLanes * 8) {
      float x[8], y[8];
      load_values<true>(x, o + column, 8);
      load_values<true>(y, d_o + column, 8);
#pragma unroll
      for (int i = 0; i < 8; ++i) sum = fmaf(x[i], y[i], sum);
    }
  }
  const unsigned lanes = 0xffU << threadIdx.x % kLanes / kDeltaLanes * kDeltaLanes;
  for (int step = kDeltaLanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(lanes, sum, step);
  if (lane != 0) return;
  const bool inside = row < s.n_queries;
  lse2[index] = inside ? args.lse[(batch * s.n_heads + head) * s.n_queries + row] * kLog2E : INFINITY;
  delta[index] = sum;
}

/// Grid: one block per C::kRows keys, key/value head and sequence; the first keys, which most queries see, first.
template <class C>
__global__ void __launch_bounds__(C::kThreads, 1)
    attention_backward_keys_kernel(const __grid_constant__ MmaBackwardParams p) {
  extern __shared__ __align__(128) unsigned char memory[];
  const uint32_t k = shared_address(memory), v = k + C::kOwnBytes, stages = v + C::kOwnBytes;
  const Sizes& sizes = p.sizes;
  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  const int n_sequences = sizes.batch * sizes.n_kv_heads, sequence = blockIdx.x % n_sequences;
  const int first_key = blockIdx.x / n_sequences * C::kRows, own_key = first_key + warp * 16;
  const int batch = sequence / sizes.n_kv_heads, kv_head = sequence % sizes.n_kv_heads;
  const int offset = sizes.n_keys - sizes.n_queries, n_shared_heads = sizes.n_heads / sizes.n_kv_heads;
  const int first_query = max(first_key - offset, 0) / C::kTile * C::kTile;
  const int n_head_tiles = (sizes.n_queries - first_query + C::kTile - 1) / C::kTile;
  const float scale2 = p.args.shape.scale * kLog2E;
  const auto copy_queries = [&](int i) {
    const int head = kv_head * n_shared_heads + i / n_head_tiles;
    const int query = first_query + i % n_head_tiles * C::kTile;
    const uint32_t stage = stages + i % 2 * C::kStageBytes;
    copy_tile_async<C::kTile, C::kWidth, C::kThreads>(stage, p.args.q, batch, head, query, sizes.n_queries);
    copy_tile_async<C::kTile, C::kWidth, C::kThreads>(stage + C::kStreamBytes, p.args.d_o, batch, head, query,
                                                      sizes.n_queries);
    const int64_t row = (static_cast<int64_t>(batch) * sizes.n_heads + head) * p.padded_queries + query;
    if (threadIdx.x < 2 * C::kTile / 4) {
      const int chunk = threadIdx.x % (C::kTile / 4) * 4;
      const float* const from = (threadIdx.x < C::kTile / 4 ? p.lse2 : p.delta) + row + chunk;
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                   :
                   : "r"(stage + 2 * C::kStreamBytes + threadIdx.x * 16), "l"(__cvta_generic_to_global(from))
                   : "memory");
    }
    copy_async_commit();
  };
  copy_tile_async<C::kRows, C::kWidth, C::kThreads>(k, p.args.k, batch, kv_head, first_key, sizes.n_keys);
  copy_tile_async<C::kRows, C::kWidth, C::kThreads>(v, p.args.v, batch, kv_head, first_key, sizes.n_keys);
  copy_queries(0);
  float d_k[C::kWidth / 2] = {}, d_v[C::kWidth / 2] = {};
  for (int i = 0; i < n_shared_heads * n_head_tiles; ++i) {
    copy_async_wait();
    __syncthreads();
    if (i + 1 < n_shared_heads * n_head_tiles) copy_queries(i + 1);
    const int query = first_query + i % n_head_tiles * C::kTile + offset;
    const uint32_t q = stages + i % 2 * C::kStageBytes, d_o = q + C::kStreamBytes;
    const uint32_t columns = d_o + C::kStreamBytes + lane % 4 * 8;
    float s[C::kTile / 2], d_p[C::kTile / 2];
    uint32_t weights[C::kTile / 4];
    multiply_rows<C::kWidth, C::kRows, C::kTile>(s, k, warp * 16, q);
    if (query < own_key + 15) mask_queries(s, own_key, query);
    columns_to_probabilities(s, scale2, columns);
    pack_fragment(weights, s);
    multiply_columns<C::kTile, C::kWidth>(d_v, weights, d_o);
    multiply_rows<C::kWidth, C::kRows, C::kTile>(d_p, v, warp * 16, d_o);
    columns_to_d_scores(weights, s, d_p, columns + 4 * C::kTile);
    multiply_columns<C::kTile, C::kWidth>(d_k, weights, q);
  }
  const float scale[2] = {p.args.shape.scale, p.args.shape.scale};
  scale_rows(d_k, scale);
  store_warp_rows<C::kRows, C::kWidth>(p.args.d_k, batch, kv_head, own_key, sizes.n_keys, k, warp * 16, d_k);
  store_warp_rows<C::kRows, C::kWidth>(p.args.d_v, batch, kv_head, own_key, sizes.n_keys, v, warp * 16, d_v);
}

/// Grid: one block per C::kRows queries, head and sequence.
template <class C>
__global__ void __launch_bounds__(C::kThreads, 1)
    attention_backward_queries_kernel(const __grid_constant__ MmaBackwardParams p) {
  extern __shared__ __align__(128) unsigned char memory[];
  const uint32_t q = shared_address(memory), d_o = q + C::kOwnBytes, stages = d_o + C::kOwnBytes;
  const Sizes& sizes = p.sizes;
  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  QueryTile tile;
  if (!query_tile<C::kRows, C::kTile>(sizes, 0, tile)) return;
  const int kv_head = tile.head / (sizes.n_heads / sizes.n_kv_heads);
  const int first = tile.first + warp * 16, first_row = first + sizes.n_keys - sizes.n_queries;
  const float scale2 = p.args.shape.scale * kLog2E;
  const auto copy_keys = [&](int j) {
    const uint32_t stage = stages + j % 2 * C::kStageBytes;
    copy_tile_async<C::kTile, C::kWidth, C::kThreads>(stage, p.args.k, tile.batch, kv_head, j * C::kTile, sizes.n_keys);
    copy_tile_async<C::kTile, C::kWidth, C::kThreads>(stage + C::kStreamBytes, p.args.v, tile.batch, kv_head,
                                                      j * C::kTile, sizes.n_keys);
    copy_async_commit();
  };
  copy_tile_async<C::kRows, C::kWidth, C::kThreads>(q, p.args.q, tile.batch, tile.head, tile.first, sizes.n_queries);
  copy_tile_async<C::kRows, C::kWidth, C::kThreads>(d_o, p.args.d_o, tile.batch, tile.head, tile.first,
                                                    sizes.n_queries);
  copy_keys(0);
  const int64_t rows = (static_cast<int64_t>(tile.batch) * sizes.n_heads + tile.head) * p.padded_queries;
  float lse2[2], delta[2];
  for (int r = 0; r < 2; ++r) {
    lse2[r] = p.lse2[rows + first + lane / 4 + 8 * r];
    delta[r] = p.delta[rows + first + lane / 4 + 8 * r];
  }
  float d_q[C::kWidth / 2] = {};
  for (int j = 0; j < tile.n_key_tiles; ++j) {
    copy_async_wait();
    __syncthreads();
    if (j + 1 < tile.n_key_tiles) copy_keys(j + 1);
    const uint32_t k = stages + j % 2 * C::kStageBytes, v = k + C::kStreamBytes;
    float s[C::kTile / 2], d_p[C::kTile / 2];
    uint32_t weights[C::kTile / 4];
    multiply_rows<C::kWidth, C::kRows, C::kTile>(s, q, warp * 16, k);
    if (j * C::kTile + C::kTile - 1 > first_row) mask_keys(s, first_row, j * C::kTile);
    rows_to_probabilities(s, scale2, lse2);
    multiply_rows<C::kWidth, C::kRows, C::kTile>(d_p, d_o, warp * 16, v);
    rows_to_d_scores(weights, s, d_p, delta);
    multiply_columns<C::kTile, C::kWidth>(d_q, weights, k);
  }
  const float scale[2] = {p.args.shape.scale, p.args.shape.scale};
  scale_rows(d_q, scale);
  store_warp_rows<C::kRows, C::kWidth>(p.args.d_q, tile.batch, tile.head, first, sizes.n_queries, q, warp * 16, d_q);
}

// Launchers.

inline MmaBackwardParams mma_params(const AttentionPlainBackwardArgs& args) {
  const AttentionShape& s = args.shape;
  const int padded_queries = static_cast<int>(round_up(s.n_queries, kPaddedRows));
  const auto* const lse2 = static_cast<const float*>(args.scratch);
  return {args, sizes_of(s), padded_queries, lse2, lse2 + s.batch * s.n_heads * padded_queries};
}

inline cudaError_t backward_delta(const AttentionPlainBackwardArgs& args, cudaStream_t stream) {
  const AttentionShape& s = args.shape;
  const int64_t padded_queries = round_up(s.n_queries, kPaddedRows);
  const int64_t n_rows = s.batch * s.n_heads * padded_queries;
  auto* const lse2 = static_cast<float*>(args.scratch);
  return launch(attention_delta_kernel, {ceil_div(n_rows, kDeltaThreads / kDeltaLanes), kDeltaThreads, 0}, stream, args,
                static_cast<int>(padded_queries), lse2, lse2 + n_rows);
}

template <class C>
cudaError_t launch_mma(void (*kernel)(MmaBackwardParams), int64_t n_blocks, const AttentionPlainBackwardArgs& args,
                       cudaStream_t stream) {
  const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, C::kSharedBytes);
  if (error != cudaSuccess) return error;
  return launch(kernel, {n_blocks, C::kThreads, C::kSharedBytes}, stream, mma_params(args));
}

template <class C>
cudaError_t mma_backward_keys(const AttentionPlainBackwardArgs& args, cudaStream_t stream) {
  const AttentionShape& s = args.shape;
  return launch_mma<C>(attention_backward_keys_kernel<C>, ceil_div(s.n_keys, C::kRows) * s.n_kv_heads * s.batch, args,
                       stream);
}
template <class C>
cudaError_t mma_backward_queries(const AttentionPlainBackwardArgs& args, cudaStream_t stream) {
  const AttentionShape& s = args.shape;
  return launch_mma<C>(attention_backward_queries_kernel<C>, ceil_div(s.n_queries, C::kRows) * s.n_heads * s.batch,
                       args, stream);
}

template <class C>
cudaError_t mma_backward(const AttentionPlainBackwardArgs& args, cudaStream_t stream) {
  const cudaError_t error = mma_backward_keys<C>(args, stream);
  return error != cudaSuccess ? error : mma_backward_queries<C>(args, stream);
}

}  // namespace

cudaError_t launch_attention_delta(const AttentionBackwardArgs& args, cudaStream_t stream) {
  return backward_delta(args, stream);
}

cudaError_t launch_attention_mma_backward(const AttentionBackwardArgs& args, cudaStream_t stream) {
  switch (args.shape.width) {
    case 64: return mma_backward<MmaBackward<64, 4, 64>>(args, stream);
    case 80: return mma_backward<MmaBackward<80, 4, 64>>(args, stream);
    case 96: return mma_backward<MmaBackward<96, 4, 64>>(args, stream);
    case 128: return mma_backward<MmaBackward<128, 4, 64>>(args, stream);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace ferry::kernels::attention
