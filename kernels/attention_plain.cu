// SPDX-License-Identifier: Apache-2.0
// Plain attention: a warp per four rows, tiles of 32 rows of the other side in shared memory, everything in f32.
// Source: Dao et al. 2022, arXiv:2205.14135, algorithms 1 and 4; Milakov & Gimelshein 2018, arXiv:1805.02867.
#include "kernels/attention_plain.h"

#include <math_constants.h>

#include "kernels/launch_kernel.cuh"

namespace ferry::kernels {
namespace {

using std::int64_t;

// Policy. A block owns 16 rows (queries, or keys for d_k and d_v); lane l of every warp scores row l of a tile, then
// owns columns l, l + 32, ... of the products. Widths are padded with zeros to 64, 128 or 256, so that loops are
// unrolled.
constexpr int kLanes = 32;
constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kLanes;
constexpr int kRowsPerWarp = 4;
constexpr int kRows = kWarps * kRowsPerWarp;
constexpr int kTile = kLanes;
constexpr int kPad = 4;  // floats: the 16-byte loads of eight lanes, a row apart, meet eight different bank groups

constexpr unsigned kAllLanes = 0xffffffffU;

// Maths.

__device__ float to_float(float x) { return x; }
__device__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ void store(float* out, float x) { *out = x; }
__device__ void store(__nv_bfloat16* out, float x) { *out = __float2bfloat16_rn(x); }

/// Every lane gets the same bits: in each step both partners add the same two numbers.
__device__ float warp_sum(float x) {
  for (int step = kLanes / 2; step > 0; step /= 2) x += __shfl_xor_sync(kAllLanes, x, step);
  return x;
}

__device__ float warp_max(float x) {
  for (int step = kLanes / 2; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, step));
  return x;
}

/// scores[r] = rows[r] . tile_row over kWidth columns, ascending; rows is shared by the warp, tile_row is the lane's.
template <int kWidth>
__device__ void dot_rows(const float* rows, const float* tile_row, float (&scores)[kRowsPerWarp]) {
  for (float& score : scores) score = 0;
#pragma unroll 4
  for (int c = 0; c < kWidth; c += 4) {
    const float4 t = *reinterpret_cast<const float4*>(tile_row + c);
#pragma unroll
    for (int r = 0; r < kRowsPerWarp; ++r) {
      const float4 x = *reinterpret_cast<const float4*>(rows + r * kWidth + c);
      scores[r] = fmaf(x.x, t.x, scores[r]);
      scores[r] = fmaf(x.y, t.y, scores[r]);
      scores[r] = fmaf(x.z, t.z, scores[r]);
      scores[r] = fmaf(x.w, t.w, scores[r]);
    }
  }
}

/// sums[r][c] += sum over the tile's rows t, ascending, of weights[r] of lane t * tile[t][lane + 32 * c].
template <int kColumns>
__device__ void add_weighted_rows(const float (&weights)[kRowsPerWarp], const float* tile,
                                  float (&sums)[kRowsPerWarp][kColumns]) {
  constexpr int kStride = kColumns * kLanes + kPad;
  const int lane = threadIdx.x % kLanes;
#pragma unroll 4
  for (int t = 0; t < kTile; ++t) {
    float x[kColumns];
#pragma unroll
    for (int c = 0; c < kColumns; ++c) x[c] = tile[t * kStride + lane + c * kLanes];
#pragma unroll
    for (int r = 0; r < kRowsPerWarp; ++r) {
      const float weight = __shfl_sync(kAllLanes, weights[r], t);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) sums[r][c] = fmaf(weight, x[c], sums[r][c]);
    }
  }
}

// Moving rows.

template <class T>
__device__ T* head_row(const HeadRows& x, int64_t batch, int64_t row, int64_t head) {
  return static_cast<T*>(x.data) + batch * x.batch_stride + row * x.row_stride + head * x.head_stride;
}

/// out[r * kStride + c] = scale * x[begin + r][c] by the whole block; 0 beyond `limit` rows and `width` columns.
template <class T, int kCount, int kWidth, int kStride>
__device__ void load_rows(float* out, const HeadRows& x, int64_t batch, int64_t head, int64_t begin, int64_t limit,
                          int width, float scale) {
  const T* const first = head_row<const T>(x, batch, begin, head);
  for (int i = threadIdx.x; i < kCount * kWidth; i += kThreads) {
    const int r = i / kWidth, c = i % kWidth;
    const bool inside = begin + r < limit && c < width;
    out[r * kStride + c] = inside ? to_float(first[r * x.row_stride + c]) * scale : 0.0F;
  }
}

/// The warp's rows of x, times factors[r].
template <class T, int kColumns>
__device__ void store_rows(const HeadRows& x, int64_t batch, int64_t head, int64_t begin, int64_t limit, int width,
                           const float (&values)[kRowsPerWarp][kColumns], const float (&factors)[kRowsPerWarp]) {
  const int lane = threadIdx.x % kLanes;
  for (int r = 0; r < kRowsPerWarp; ++r) {
    if (begin + r >= limit) return;
    T* const out = head_row<T>(x, batch, begin + r, head);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const int column = lane + c * kLanes;
      if (column < width) store(out + column, values[r][c] * factors[r]);
    }
  }
}

/// What a block works on: kRows rows of one head of one sequence. Late rows come first when they have the most work.
struct BlockPlace {
  int64_t batch;
  int64_t head;
  int64_t begin;
};

__device__ BlockPlace block_place(int64_t n_rows, int64_t n_heads, bool late_first) {
  const int64_t n_blocks = (n_rows + kRows - 1) / kRows;
  const int64_t index = blockIdx.x;
  const int64_t sequence_head = index % (gridDim.x / n_blocks);
  const int64_t block = index / (gridDim.x / n_blocks);
  const int64_t row_block = late_first ? n_blocks - 1 - block : block;
  return {sequence_head / n_heads, sequence_head % n_heads, row_block * kRows};
}

__device__ int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// Kernels.

/// Grid: one block per kRows queries, head and sequence.
template <class T, int kColumns>
__global__ void __launch_bounds__(kThreads) attention_plain_forward_kernel(AttentionPlainForwardArgs args) {
  constexpr int kWidth = kColumns * kLanes;
  constexpr int kStride = kWidth + kPad;
  extern __shared__ float4 shared[];
  float* const k_tile = reinterpret_cast<float*>(shared);  // (kTile, kStride)
  float* const v_tile = k_tile + kTile * kStride;          // (kTile, kStride)
  float* const q_rows = v_tile + kTile * kStride;          // (kRows, kWidth), times scale
  const AttentionShape& s = args.shape;
  const int width = static_cast<int>(s.width);
  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  const BlockPlace place = block_place(s.n_queries, s.n_heads, true);
  const int64_t kv_head = place.head / (s.n_heads / s.n_kv_heads);
  const int64_t first_row = place.begin + warp * kRowsPerWarp;
  const int64_t offset = s.n_keys - s.n_queries;
  const int64_t key_limit = smaller(place.begin + kRows, s.n_queries) + offset;

  load_rows<T, kRows, kWidth, kWidth>(q_rows, args.q, place.batch, place.head, place.begin, s.n_queries, width,
                                      s.scale);
  float out[kRowsPerWarp][kColumns] = {};
  float maximum[kRowsPerWarp], sum[kRowsPerWarp] = {};
  for (float& m : maximum) m = -CUDART_INF_F;
  for (int64_t begin = 0; begin < key_limit; begin += kTile) {
    __syncthreads();
    load_rows<T, kTile, kWidth, kStride>(k_tile, args.k, place.batch, kv_head, begin, key_limit, width, 1);
    load_rows<T, kTile, kWidth, kStride>(v_tile, args.v, place.batch, kv_head, begin, key_limit, width, 1);
    __syncthreads();
    float scores[kRowsPerWarp];
    dot_rows<kWidth>(q_rows + warp * kRowsPerWarp * kWidth, k_tile + lane * kStride, scores);
#pragma unroll
    for (int r = 0; r < kRowsPerWarp; ++r) {
      // Key 0 is visible to every row, so maximum is set by the first tile.
      const float score = begin + lane <= first_row + r + offset ? scores[r] : -CUDART_INF_F;
      const float larger = fmaxf(maximum[r], warp_max(score));
      const float kept = expf(maximum[r] - larger);
      scores[r] = expf(score - larger);
      sum[r] = sum[r] * kept + warp_sum(scores[r]);
      maximum[r] = larger;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) out[r][c] *= kept;
    }
    add_weighted_rows<kColumns>(scores, v_tile, out);
  }

  float inverse[kRowsPerWarp];
  for (int r = 0; r < kRowsPerWarp; ++r) {
    inverse[r] = 1.0F / sum[r];
    const int64_t row = first_row + r;
    if (lane == 0 && row < s.n_queries) {
      args.lse[(place.batch * s.n_heads + place.head) * s.n_queries + row] = maximum[r] + logf(sum[r]);
    }
  }
  store_rows<T>(args.o, place.batch, place.head, first_row, s.n_queries, width, out, inverse);
}

/// delta[b,h,i] = sum over D of d_o * o. Grid: one warp per query row and head.
template <class T>
__global__ void __launch_bounds__(kThreads) attention_plain_delta_kernel(AttentionPlainBackwardArgs args) {
  const AttentionShape& s = args.shape;
  float* const delta = static_cast<float*>(args.scratch);
  const int lane = threadIdx.x % kLanes;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kLanes;
  if (index >= s.batch * s.n_heads * s.n_queries) return;
  const int64_t row = index % s.n_queries;
  const int64_t head = index / s.n_queries % s.n_heads;
  const int64_t batch = index / s.n_queries / s.n_heads;
  const T* const o = head_row<const T>(args.o, batch, row, head);
  const T* const d_o = head_row<const T>(args.d_o, batch, row, head);
  float sum = 0;
  for (int c = lane; c < s.width; c += kLanes) sum = fmaf(to_float(o[c]), to_float(d_o[c]), sum);
  sum = warp_sum(sum);
  if (lane == 0) delta[index] = sum;
}

/// Grid: one block per kRows queries, head and sequence.
template <class T, int kColumns>
__global__ void __launch_bounds__(kThreads) attention_plain_backward_q_kernel(AttentionPlainBackwardArgs args) {
  constexpr int kWidth = kColumns * kLanes;
  constexpr int kStride = kWidth + kPad;
  extern __shared__ float4 shared[];
  float* const k_tile = reinterpret_cast<float*>(shared);  // (kTile, kStride)
  float* const v_tile = k_tile + kTile * kStride;          // (kTile, kStride)
  float* const q_rows = v_tile + kTile * kStride;          // (kRows, kWidth), times scale
  float* const d_o_rows = q_rows + kRows * kWidth;         // (kRows, kWidth)
  const AttentionShape& s = args.shape;
  const float* const delta = static_cast<const float*>(args.scratch);
  const int width = static_cast<int>(s.width);
  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  const BlockPlace place = block_place(s.n_queries, s.n_heads, true);
  const int64_t kv_head = place.head / (s.n_heads / s.n_kv_heads);
  const int64_t first_row = place.begin + warp * kRowsPerWarp;
  const int64_t offset = s.n_keys - s.n_queries;
  const int64_t key_limit = smaller(place.begin + kRows, s.n_queries) + offset;

  load_rows<T, kRows, kWidth, kWidth>(q_rows, args.q, place.batch, place.head, place.begin, s.n_queries, width,
                                      s.scale);
  load_rows<T, kRows, kWidth, kWidth>(d_o_rows, args.d_o, place.batch, place.head, place.begin, s.n_queries, width, 1);
  float row_lse[kRowsPerWarp], row_delta[kRowsPerWarp];
  for (int r = 0; r < kRowsPerWarp; ++r) {
    const int64_t row = smaller(first_row + r, s.n_queries - 1);
    const int64_t index = (place.batch * s.n_heads + place.head) * s.n_queries + row;
    row_lse[r] = args.lse[index];
    row_delta[r] = delta[index];
  }
  float d_q[kRowsPerWarp][kColumns] = {};
  for (int64_t begin = 0; begin < key_limit; begin += kTile) {
    __syncthreads();
    load_rows<T, kTile, kWidth, kStride>(k_tile, args.k, place.batch, kv_head, begin, key_limit, width, 1);
    load_rows<T, kTile, kWidth, kStride>(v_tile, args.v, place.batch, kv_head, begin, key_limit, width, 1);
    __syncthreads();
    float scores[kRowsPerWarp], d_scores[kRowsPerWarp];
    dot_rows<kWidth>(q_rows + warp * kRowsPerWarp * kWidth, k_tile + lane * kStride, scores);
    dot_rows<kWidth>(d_o_rows + warp * kRowsPerWarp * kWidth, v_tile + lane * kStride, d_scores);
#pragma unroll
    for (int r = 0; r < kRowsPerWarp; ++r) {
      const bool visible = begin + lane <= first_row + r + offset && begin + lane < key_limit;
      d_scores[r] = visible ? expf(scores[r] - row_lse[r]) * (d_scores[r] - row_delta[r]) : 0.0F;
    }
    add_weighted_rows<kColumns>(d_scores, k_tile, d_q);
  }
  const float factors[kRowsPerWarp] = {s.scale, s.scale, s.scale, s.scale};
  store_rows<T>(args.d_q, place.batch, place.head, first_row, s.n_queries, width, d_q, factors);
}

/// Grid: one block per kRows keys, key/value head and sequence.
template <class T, int kColumns>
__global__ void __launch_bounds__(kThreads) attention_plain_backward_kv_kernel(AttentionPlainBackwardArgs args) {
  constexpr int kWidth = kColumns * kLanes;
  constexpr int kStride = kWidth + kPad;
  extern __shared__ float4 shared[];
  float* const q_tile = reinterpret_cast<float*>(shared);  // (kTile, kStride), times scale
  float* const d_o_tile = q_tile + kTile * kStride;        // (kTile, kStride)
  float* const k_rows = d_o_tile + kTile * kStride;        // (kRows, kWidth)
  float* const v_rows = k_rows + kRows * kWidth;           // (kRows, kWidth)
  const AttentionShape& s = args.shape;
  const float* const delta = static_cast<const float*>(args.scratch);
  const int width = static_cast<int>(s.width);
  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  const BlockPlace place = block_place(s.n_keys, s.n_kv_heads, false);
  const int64_t group = s.n_heads / s.n_kv_heads;
  const int64_t first_row = place.begin + warp * kRowsPerWarp;
  const int64_t offset = s.n_keys - s.n_queries;
  // The first query that sees the block's first key, rounded down to a tile.
  const int64_t first_query = place.begin > offset ? (place.begin - offset) / kTile * kTile : 0;

  load_rows<T, kRows, kWidth, kWidth>(k_rows, args.k, place.batch, place.head, place.begin, s.n_keys, width, 1);
  load_rows<T, kRows, kWidth, kWidth>(v_rows, args.v, place.batch, place.head, place.begin, s.n_keys, width, 1);
  float d_k[kRowsPerWarp][kColumns] = {}, d_v[kRowsPerWarp][kColumns] = {};
  for (int64_t head = place.head * group; head < (place.head + 1) * group; ++head) {
    for (int64_t begin = first_query; begin < s.n_queries; begin += kTile) {
      __syncthreads();
      load_rows<T, kTile, kWidth, kStride>(q_tile, args.q, place.batch, head, begin, s.n_queries, width, s.scale);
      load_rows<T, kTile, kWidth, kStride>(d_o_tile, args.d_o, place.batch, head, begin, s.n_queries, width, 1);
      __syncthreads();
      const int64_t query = begin + lane;
      const int64_t index = (place.batch * s.n_heads + head) * s.n_queries + smaller(query, s.n_queries - 1);
      const float query_lse = args.lse[index], query_delta = delta[index];
      float scores[kRowsPerWarp], d_scores[kRowsPerWarp];
      dot_rows<kWidth>(k_rows + warp * kRowsPerWarp * kWidth, q_tile + lane * kStride, scores);
      dot_rows<kWidth>(v_rows + warp * kRowsPerWarp * kWidth, d_o_tile + lane * kStride, d_scores);
#pragma unroll
      for (int r = 0; r < kRowsPerWarp; ++r) {
        const bool visible = query < s.n_queries && first_row + r <= query + offset;
        scores[r] = visible ? expf(scores[r] - query_lse) : 0.0F;
        d_scores[r] = visible ? scores[r] * (d_scores[r] - query_delta) : 0.0F;
      }
      add_weighted_rows<kColumns>(scores, d_o_tile, d_v);
      add_weighted_rows<kColumns>(d_scores, q_tile, d_k);
    }
  }
  const float factors[kRowsPerWarp] = {1, 1, 1, 1};
  store_rows<T>(args.d_k, place.batch, place.head, first_row, s.n_keys, width, d_k, factors);
  store_rows<T>(args.d_v, place.batch, place.head, first_row, s.n_keys, width, d_v, factors);
}

// Launchers.

constexpr std::size_t shared_bytes(int padded_width, int n_tiles, int n_row_sets) {
  return sizeof(float) *
         static_cast<std::size_t>(n_tiles * kTile * (padded_width + kPad) + n_row_sets * kRows * padded_width);
}

/// A block may use more than 48 KiB of shared memory only when its kernel says so first.
template <class Args>
cudaError_t launch_blocks(void (*kernel)(Args), const Args& args, int64_t n_blocks, std::size_t n_shared_bytes,
                          cudaStream_t stream) {
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(n_shared_bytes));
  if (error != cudaSuccess) return error;
  return launch(kernel, {n_blocks, kThreads, n_shared_bytes}, stream, args);
}

template <class T, int kColumns>
cudaError_t forward(const AttentionPlainForwardArgs& args, cudaStream_t stream) {
  const AttentionShape& s = args.shape;
  return launch_blocks(attention_plain_forward_kernel<T, kColumns>, args,
                       ceil_div(s.n_queries, kRows) * s.n_heads * s.batch, shared_bytes(kColumns * kLanes, 2, 1),
                       stream);
}

template <class T, int kColumns>
cudaError_t backward(const AttentionPlainBackwardArgs& args, cudaStream_t stream) {
  const AttentionShape& s = args.shape;
  constexpr std::size_t kSharedBytes = shared_bytes(kColumns * kLanes, 2, 2);
  static_assert(kSharedBytes <= 99 * 1024, "the smallest limit of a block, of compute capability 8.6, 8.9 and 12.0");
  cudaError_t error = launch_blocks(attention_plain_delta_kernel<T>, args,
                                    ceil_div(s.batch * s.n_heads * s.n_queries, kWarps), 0, stream);
  if (error != cudaSuccess) return error;
  error = launch_blocks(attention_plain_backward_q_kernel<T, kColumns>, args,
                        ceil_div(s.n_queries, kRows) * s.n_heads * s.batch, kSharedBytes, stream);
  if (error != cudaSuccess) return error;
  return launch_blocks(attention_plain_backward_kv_kernel<T, kColumns>, args,
                       ceil_div(s.n_keys, kRows) * s.n_kv_heads * s.batch, kSharedBytes, stream);
}

/// Calls fn.operator()<T, kColumns>() for the element type and the padded width.
template <class T, class Fn>
cudaError_t with_columns(int64_t width, Fn&& fn) {
  if (width <= 64) return fn.template operator()<T, 2>();
  if (width <= 128) return fn.template operator()<T, 4>();
  if (width <= kAttentionPlainMaxWidth) return fn.template operator()<T, 8>();
  return cudaErrorInvalidValue;
}

template <class Fn>
cudaError_t with_type_and_columns(const AttentionShape& shape, Fn&& fn) {
  if (shape.type == Type::kF32) return with_columns<float>(shape.width, fn);
  return with_columns<__nv_bfloat16>(shape.width, fn);
}

}  // namespace

cudaError_t launch_attention_plain_forward(const AttentionPlainForwardArgs& args, cudaStream_t stream) {
  return with_type_and_columns(args.shape, [&]<class T, int kColumns>() { return forward<T, kColumns>(args, stream); });
}

std::size_t attention_plain_backward_scratch_bytes(const AttentionShape& shape) {
  return sizeof(float) * static_cast<std::size_t>(shape.batch * shape.n_heads * shape.n_queries);
}

cudaError_t launch_attention_plain_backward(const AttentionPlainBackwardArgs& args, cudaStream_t stream) {
  return with_type_and_columns(args.shape,
                               [&]<class T, int kColumns>() { return backward<T, kColumns>(args, stream); });
}

}  // namespace ferry::kernels
