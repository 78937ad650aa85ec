// SPDX-License-Identifier: Apache-2.0
// What the fused attention kernels share: tiles in shared memory, fragments in registers, masks, softmax.
// Source: Dao 2023, arXiv:2307.08691; Milakov & Gimelshein 2018, arXiv:1805.02867.
//
// A tile is rows of bf16 in blocks of 64 columns: block c / 64 holds rows of 128 bytes, in which the 16-byte chunk c /
// 8 lies at place (c / 8) ^ (row % 8). Rows and columns of eight chunks then meet all banks. The tensor copy engine and
// wgmma call this the 128-byte swizzle.
//
// A warp's fragment of 16 rows x 8 * n columns: x[4 * n + e] lies in row lane / 4 + e / 2 * 8 and column
// 8 * n + lane % 4 * 2 + e % 2. mma.sync and wgmma agree on it.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/attention_plain.h"

namespace ferry::kernels::attention {

inline constexpr int kLanes = 32;
inline constexpr int kBlockColumns = 64;
inline constexpr int kBlockRowBytes = 128;
inline constexpr unsigned kAllLanes = 0xffffffffU;
inline constexpr float kLog2E = 1.44269504088896340736F;
inline constexpr float kLn2 = 0.69314718055994530942F;

/// Queries per row of lse2 and delta are padded to a multiple of this; every query tile divides it.
inline constexpr int kPaddedRows = 128;

template <int kWidth>
inline constexpr int kBlocks = (kWidth + kBlockColumns - 1) / kBlockColumns;

/// Bytes of a tile.
template <int kRows, int kWidth>
inline constexpr int kTileBytes = kBlocks<kWidth>* kRows* kBlockRowBytes;

/// Byte offset of the chunk that holds column `column` (a multiple of 8).
template <int kRows>
__device__ __forceinline__ std::uint32_t chunk_offset(int row, int column) {
  const int block = column / kBlockColumns, chunk = column % kBlockColumns / 8;
  return static_cast<std::uint32_t>(block * kRows * kBlockRowBytes + row * kBlockRowBytes + (chunk ^ (row % 8)) * 16);
}

__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

/// Four 8 x 8 matrices; lane l names row l % 8 of matrix l / 8.
__device__ __forceinline__ void load_matrices(std::uint32_t (&out)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address)
               : "memory");
}

__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ std::uint32_t pack_pair(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const std::uint32_t&>(pair);
}

/// A fragment of scores as the left operand of the next product: 16 columns a step.
template <int kCount>
__device__ __forceinline__ void pack_fragment(std::uint32_t (&out)[kCount / 2], const float (&x)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) out[i] = pack_pair(x[2 * i], x[2 * i + 1]);
}

__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 1));
  return fmaxf(x, __shfl_xor_sync(kAllLanes, x, 2));
}

__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(kAllLanes, x, 1);
  return x + __shfl_xor_sync(kAllLanes, x, 2);
}

/// Rows are queries, columns are keys: hides keys behind the diagonal. `first_row` and `first_column` are the places,
/// counted in keys, of the fragment's first row and column.
template <int kCount>
__device__ __forceinline__ void mask_keys(float (&x)[kCount], int first_row, int first_column) {
  const int lane = threadIdx.x % kLanes;
  const int last = first_row + lane / 4 - first_column - lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (i / 4 * 8 + i % 2 > last + i % 4 / 2 * 8) x[i] = -INFINITY;
  }
}

/// Rows are keys, columns are queries: hides queries before the diagonal.
template <int kCount>
__device__ __forceinline__ void mask_queries(float (&x)[kCount], int first_row, int first_column) {
  const int lane = threadIdx.x % kLanes;
  const int first = first_row + lane / 4 - first_column - lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (i / 4 * 8 + i % 2 < first + i % 4 / 2 * 8) x[i] = -INFINITY;
  }
}

/// Of the thread's two rows: the largest score so far, and the thread's share of the sum of exponentials.
struct Softmax {
  float maximum[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0, 0};
};

/// Turns scores into exponentials, base 2 of scale2 * score; what was summed before counts kept[row] times as much.
template <int kCount>
__device__ __forceinline__ void softmax_step(float (&x)[kCount], float scale2, Softmax& state, float (&kept)[2]) {
  float base[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float even = x[2 * r], odd = x[2 * r + 1];
#pragma unroll
    for (int i = 4; i < kCount; i += 4) {
      even = fmaxf(even, x[i + 2 * r]);
      odd = fmaxf(odd, x[i + 2 * r + 1]);
    }
    const float larger = fmaxf(state.maximum[r], quad_max(fmaxf(even, odd)));
    kept[r] = exp2_approx((state.maximum[r] - larger) * scale2);
    state.maximum[r] = larger;
    base[r] = larger * scale2;
  }
  float even[2] = {0, 0}, odd[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      x[i + 2 * r] = exp2_approx(fmaf(x[i + 2 * r], scale2, -base[r]));
      x[i + 2 * r + 1] = exp2_approx(fmaf(x[i + 2 * r + 1], scale2, -base[r]));
      even[r] += x[i + 2 * r];
      odd[r] += x[i + 2 * r + 1];
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) state.sum[r] = fmaf(state.sum[r], kept[r], even[r] + odd[r]);
}

/// Multiplies the thread's two rows.
template <int kCount>
__device__ __forceinline__ void scale_rows(float (&x)[kCount], const float (&factor)[2]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) x[i] *= factor[i % 4 / 2];
}

/// Ends the softmax: inverse sums, and the natural log-sum-exp of each row.
__device__ __forceinline__ void softmax_end(const Softmax& state, float scale2, float (&inverse)[2], float (&lse)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float sum = quad_sum(state.sum[r]);
    inverse[r] = 1.0F / sum;
    lse[r] = (state.maximum[r] * scale2 + log2f(sum)) * kLn2;
  }
}

// Probabilities and gradients of scores for the backward pass: p = 2^(scale2 * s - lse2), d_s = p * (d_p - delta).

template <int kCount>
__device__ __forceinline__ void rows_to_probabilities(float (&s)[kCount], float scale2, const float (&lse2)[2]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) s[i] = exp2_approx(fmaf(s[i], scale2, -lse2[i % 4 / 2]));
}

template <int kCount>
__device__ __forceinline__ void rows_to_d_scores(std::uint32_t (&out)[kCount / 2], const float (&p)[kCount],
                                                 const float (&d_p)[kCount], const float (&delta)[2]) {
#pragma unroll
  for (int i = 0; i < kCount; i += 2) {
    const float d = delta[i % 4 / 2];
    out[i / 2] = pack_pair(p[i] * (d_p[i] - d), p[i + 1] * (d_p[i + 1] - d));
  }
}

__device__ __forceinline__ float2 load_shared_pair(std::uint32_t address) {
  float2 pair;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(pair.x), "=f"(pair.y) : "r"(address) : "memory");
  return pair;
}

/// Columns are queries; `lse2` is the shared address of the thread's first column.
template <int kCount>
__device__ __forceinline__ void columns_to_probabilities(float (&s)[kCount], float scale2, std::uint32_t lse2) {
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    const float2 lse = load_shared_pair(lse2 + i * 8);
    s[i] = exp2_approx(fmaf(s[i], scale2, -lse.x));
    s[i + 1] = exp2_approx(fmaf(s[i + 1], scale2, -lse.y));
    s[i + 2] = exp2_approx(fmaf(s[i + 2], scale2, -lse.x));
    s[i + 3] = exp2_approx(fmaf(s[i + 3], scale2, -lse.y));
  }
}

template <int kCount>
__device__ __forceinline__ void columns_to_d_scores(std::uint32_t (&out)[kCount / 2], const float (&p)[kCount],
                                                    const float (&d_p)[kCount], std::uint32_t delta) {
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    const float2 d = load_shared_pair(delta + i * 8);
    out[i / 2] = pack_pair(p[i] * (d_p[i] - d.x), p[i + 1] * (d_p[i + 1] - d.y));
    out[i / 2 + 1] = pack_pair(p[i + 2] * (d_p[i + 2] - d.x), p[i + 3] * (d_p[i + 3] - d.y));
  }
}

template <class T>
__device__ __forceinline__ T* head_row(const HeadRows& x, std::int64_t batch, std::int64_t row, std::int64_t head) {
  return static_cast<T*>(x.data) + batch * x.batch_stride + row * x.row_stride + head * x.head_stride;
}

/// The shape in the kernels' own words; everything fits 32 bits but offsets into memory.
struct Sizes {
  int batch;
  int n_queries;
  int n_keys;
  int n_heads;
  int n_kv_heads;
};

inline Sizes sizes_of(const AttentionShape& shape) {
  return {static_cast<int>(shape.batch), static_cast<int>(shape.n_queries), static_cast<int>(shape.n_keys),
          static_cast<int>(shape.n_heads), static_cast<int>(shape.n_kv_heads)};
}

/// What a block works on next.
struct QueryTile {
  int first;  // query
  int head;
  int batch;
  int n_key_tiles;
};

/// Tiles of keys that any of the 64 queries from `first` on sees; 0 where no query is left.
template <int kKeys>
__device__ __forceinline__ int key_tiles(const Sizes& sizes, int first) {
  if (first >= sizes.n_queries) return 0;
  const int n_seen = min(first + 64, sizes.n_queries) + sizes.n_keys - sizes.n_queries;
  return (n_seen + kKeys - 1) / kKeys;
}

/// Place 0 is the longest tile of a head.
struct TilePlace {
  int place;
  int head;
  int batch;
};

/// Where tile `index` of n_tiles per head lies: place by place over all sequences, but `together` places at a time for
/// the n_shared_heads heads that stream the same rows. So blocks at work at the same time read them from the cache.
__device__ __forceinline__ TilePlace tile_place(int index, int n_tiles, int n_sequences, int n_heads,
                                                int n_shared_heads, int together) {
  if (together == 1) {  // the same places with fewer divisions, which stand between a block's tiles
    const int sequence = index % n_sequences;
    return {index / n_sequences, sequence % n_heads, sequence / n_heads};
  }
  const int first = index / (n_sequences * together) * together;
  const int n_inside = min(together, n_tiles - first) * n_shared_heads;
  const int rest = index - first * n_sequences, shared = rest / n_inside, inside = rest % n_inside;
  const int n_shares = n_heads / n_shared_heads;
  return {first + inside / n_shared_heads, shared % n_shares * n_shared_heads + inside % n_shared_heads,
          shared / n_shares};
}

/// The block's tile of round `round`. Lengths fall with the index. Rounds run forth and back over the blocks and start
/// 7/11 of the blocks further each time, and so the blocks' sums come out even: simulated for 132 blocks, 32 heads and
/// lengths from 2048 to 16384, the longest is at most 2% over what greedy choice gives.
template <int kRows, int kKeys>
__device__ __forceinline__ bool query_tile(const Sizes& sizes, int round, QueryTile& tile) {
  const int n_row_tiles = (sizes.n_queries + kRows - 1) / kRows, n_sequences = sizes.batch * sizes.n_heads;
  const int n_blocks = gridDim.x, position = round % 2 == 0 ? blockIdx.x : n_blocks - 1 - blockIdx.x;
  const int block = (position + round * (n_blocks * 7 / 11)) % n_blocks;
  const int index = round * n_blocks + block;
  if (index >= n_row_tiles * n_sequences) return false;
  const int n_shared_heads = sizes.n_heads / sizes.n_kv_heads, together = n_shared_heads < 4 ? 2 : 1;
  const TilePlace at = tile_place(index, n_row_tiles, n_sequences, sizes.n_heads, n_shared_heads, together);
  tile.first = (n_row_tiles - 1 - at.place) * kRows;
  tile.head = at.head;
  tile.batch = at.batch;
  const int last_key = min(tile.first + kRows, sizes.n_queries) + sizes.n_keys - sizes.n_queries;
  tile.n_key_tiles = (last_key + kKeys - 1) / kKeys;
  return true;
}

/// A block may have no tile in the last round.
template <int kRows>
__device__ __forceinline__ int n_rounds(const Sizes& sizes) {
  const int n_tiles = (sizes.n_queries + kRows - 1) / kRows * sizes.batch * sizes.n_heads;
  return (n_tiles + gridDim.x - 1) / gridDim.x;
}

}  // namespace ferry::kernels::attention
