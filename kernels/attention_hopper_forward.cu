// SPDX-License-Identifier: Apache-2.0
// Fused attention forward for Hopper: a producer warp copies tiles, warpgroups of 64 queries multiply by wgmma.
// Source: Shah et al. 2024, arXiv:2407.08608, algorithms 1 and 2; Dao 2023, arXiv:2307.08691.
#include "kernels/attention_hopper.cuh"
#include "kernels/attention_hopper_maps.cuh"
#include "kernels/attention_hopper_stream.cuh"
#include "kernels/attention_parts.h"
#include "kernels/launch_kernel.cuh"

namespace ferry::kernels::attention {
namespace {

using std::int64_t;
using std::uint32_t;

template <int kWidth, int kGroups, int kKeys, int kStages, bool kTurns_, int kOwnStages = 2>
struct Forward : KeyStream<kWidth, kGroups, kKeys, kStages, 1, kOwnStages> {
  static constexpr bool kTurns = kTurns_;  // warpgroups take turns: one multiplies while the others exponentiate
};

struct ForwardParams {
  CUtensorMap q;
  CUtensorMap k;
  CUtensorMap v;
  CUtensorMap o;
  float* lse;
  Sizes sizes;
  float scale2;  // scale * log2(e)
};

/// A consuming warpgroup's 64 queries of one tile.
template <class C>
struct ForwardState {
  uint32_t q;  // address of the tile's queries, of the warpgroup's own 64
  float o[C::kWidth / 2];
  uint32_t weights[C::kKeys / 4];
  Softmax softmax;
};

constexpr int kTurnBarrier = kStoreBarrier + 3;  // + warpgroup

template <class C>
__device__ __forceinline__ void take_turn(int group) {
  if constexpr (C::kTurns) named_sync<2 * kGroupThreads>(kTurnBarrier + group);
}
template <class C>
__device__ __forceinline__ void give_turn(int group) {
  if constexpr (C::kTurns) named_arrive<2 * kGroupThreads>(kTurnBarrier + (group + 1) % C::kGroups);
}

/// Scores of the next tile of keys while the last tile's values are added; then the softmax of the scores.
template <class C, bool kMasked>
__device__ __forceinline__ void forward_step(const ForwardParams& p, const StreamShared<C>& shared, int group,
                                             Ring<C::kStages>& k_ring, Ring<C::kStages>& v_ring, int first_row,
                                             int first_key, ForwardState<C>& state) {
  float s[C::kKeys / 2];
  barrier_wait(shared.k_full(k_ring.stage), k_ring.parity);
  take_turn<C>(group);
  product_rows<C::kWidth, C::kRows, C::kKeys>(s, state.q, shared.k(k_ring.stage));
  wgmma_commit();
  barrier_wait(shared.v_full(v_ring.stage), v_ring.parity);
  product_columns<C::kKeys>(state.o, state.weights, shared.v(v_ring.stage));
  wgmma_commit();
  give_turn<C>(group);
  wgmma_wait<1>();
  pin(s);
  barrier_arrive(shared.k_empty(k_ring.stage));
  k_ring.next();
  if constexpr (kMasked) mask_keys(s, first_row, first_key);
  float kept[2];
  softmax_step(s, p.scale2, state.softmax, kept);
  pin(s);
  barrier_wait(shared.v_full(v_ring.stage), v_ring.parity);  // passed: keeps the wait below behind the exponentials
  wgmma_wait<0>();
  pin(state.o);
  pin(state.weights);
  barrier_arrive(shared.v_empty(v_ring.stage));
  v_ring.next();
  scale_rows(state.o, kept);
  pack_fragment(state.weights, s);
  pin(state.weights);
}

/// The first tile of keys: nothing to add yet.
template <class C>
__device__ __forceinline__ void forward_first(const ForwardParams& p, const StreamShared<C>& shared, int group,
                                              Ring<C::kStages>& k_ring, int first_row, ForwardState<C>& state) {
  float s[C::kKeys / 2];
  barrier_wait(shared.k_full(k_ring.stage), k_ring.parity);
  take_turn<C>(group);
  product_rows<C::kWidth, C::kRows, C::kKeys>(s, state.q, shared.k(k_ring.stage));
  wgmma_commit();
  give_turn<C>(group);
  wgmma_wait<0>();
  pin(s);
  barrier_arrive(shared.k_empty(k_ring.stage));
  k_ring.next();
  if (C::kKeys - 1 > first_row) mask_keys(s, first_row, 0);
  float kept[2];
  softmax_step(s, p.scale2, state.softmax, kept);
#pragma unroll
  for (float& value : state.o) value = 0;
  pack_fragment(state.weights, s);
  pin(state.weights);
  pin(state.o);
}

/// Normalizes, and writes o through the warpgroup's own rows of the query tile.
template <class C>
__device__ __forceinline__ void forward_end(const ForwardParams& p, uint32_t q, int group, const QueryTile& tile,
                                            ForwardState<C>& state) {
  const int lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes % 4;
  float inverse[2], lse[2];
  softmax_end(state.softmax, p.scale2, inverse, lse);
  scale_rows(state.o, inverse);
  const int first = tile.first + group * 64, row = first + warp * 16 + lane / 4;
  store_group<C::kRows, C::kWidth>(q, &p.o, group, tile.head, first, tile.batch, state.o);
  float* const out = p.lse + (static_cast<int64_t>(tile.batch) * p.sizes.n_heads + tile.head) * p.sizes.n_queries;
  for (int r = 0; r < 2; ++r) {
    if (lane % 4 == 0 && row + 8 * r < p.sizes.n_queries) out[row + 8 * r] = lse[r];
  }
}

template <class C>
__device__ __forceinline__ void forward_tile(const ForwardParams& p, const StreamShared<C>& shared, int group,
                                             const QueryTile& tile, int n_group_tiles, OwnTiles<C>& own,
                                             Ring<C::kStages>& k_ring, Ring<C::kStages>& v_ring) {
  const int group_row = tile.first + group * 64 + p.sizes.n_keys - p.sizes.n_queries;
  const int first_row = group_row + threadIdx.x / kLanes % 4 * 16;     // the last key that the warp's first query sees
  const int n_whole = min((group_row + 1) / C::kKeys, n_group_tiles);  // tiles of keys that all 64 queries see
  const uint32_t q = shared.q(own.ring.stage);
  ForwardState<C> state;
  state.q = q + group * 64 * kBlockRowBytes;
  forward_first<C>(p, shared, group, k_ring, first_row, state);
  release_own(shared, own);
  int j = 1;
  for (; j < n_whole; ++j) forward_step<C, false>(p, shared, group, k_ring, v_ring, first_row, j * C::kKeys, state);
  for (; j < n_group_tiles; ++j) {
    forward_step<C, true>(p, shared, group, k_ring, v_ring, first_row, j * C::kKeys, state);
  }
  barrier_wait(shared.v_full(v_ring.stage), v_ring.parity);
  product_columns<C::kKeys>(state.o, state.weights, shared.v(v_ring.stage));
  wgmma_commit();
  wgmma_wait<0>();
  pin(state.o);
  barrier_arrive(shared.v_empty(v_ring.stage));
  v_ring.next();
  forward_end<C>(p, q, group, tile, state);
}

template <class C>
__device__ __forceinline__ void consume(const ForwardParams& p, const StreamShared<C>& shared, int group) {
  Ring<C::kStages> k_ring, v_ring;
  OwnTiles<C> own;
  if (C::kTurns && group == C::kGroups - 1) named_arrive<2 * kGroupThreads>(kTurnBarrier);
  for (int round = 0; round < n_rounds<C::kRows>(p.sizes); ++round) {
    QueryTile tile;
    if (!query_tile<C::kRows, C::kKeys>(p.sizes, round, tile)) continue;
    const int n_group_tiles = key_tiles<C::kKeys>(p.sizes, tile.first + group * 64);
    barrier_wait(shared.q_full(own.ring.stage), own.ring.parity);
    if (n_group_tiles > 0) forward_tile<C>(p, shared, group, tile, n_group_tiles, own, k_ring, v_ring);
    release_own(shared, own);
    for (int j = n_group_tiles; j < tile.n_key_tiles; ++j) {
      take_turn<C>(group);
      give_turn<C>(group);
      skip_keys<C>(shared, k_ring, v_ring);
    }
    end_own(shared, own);
  }
  release_own(shared, own);
}

// Kernel.

/// Grid: as many blocks as multiprocessors, or as tiles where these are fewer.
template <class C>
__global__ void __launch_bounds__(C::kThreads, 1)
    attention_hopper_forward_kernel(const __grid_constant__ ForwardParams p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ unsigned char memory[];
  const StreamShared<C> shared{align_shared(memory)};
  if (threadIdx.x == 0) init_barriers(shared);
  __syncthreads();
  const int group = warpgroup_index();
  if (group == 0) {
    keep_registers<C::kProducerRegisters>();
    if (threadIdx.x == 0) produce_keys<C>(p, shared);
  } else {
    take_registers<C::kConsumerRegisters>();
    consume<C>(p, shared, group - 1);
  }
#endif
}

// Launcher.

template <class C>
cudaError_t hopper_forward(const AttentionPlainForwardArgs& args, cudaStream_t stream) {
  const AttentionShape& s = args.shape;
  ForwardParams p;
  const cudaError_t error = Maps()
                                .add(&p.q, args.q, {s.batch, s.n_queries, s.n_heads, s.width, C::kRows})
                                .add(&p.k, args.k, {s.batch, s.n_keys, s.n_kv_heads, s.width, C::kKeys})
                                .add(&p.v, args.v, {s.batch, s.n_keys, s.n_kv_heads, s.width, C::kKeys})
                                .add(&p.o, args.o, {s.batch, s.n_queries, s.n_heads, s.width, 64})
                                .error();
  if (error != cudaSuccess) return error;
  p.lse = args.lse;
  p.sizes = sizes_of(s);
  p.scale2 = s.scale * kLog2E;
  const int64_t n_tiles = ceil_div(s.n_queries, C::kRows) * s.n_heads * s.batch;
  const int64_t n_blocks = n_tiles < n_multiprocessors() ? n_tiles : n_multiprocessors();
  const auto kernel = attention_hopper_forward_kernel<C>;
  const cudaError_t set = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, C::kSharedBytes);
  if (set != cudaSuccess) return set;
  return launch(kernel, {n_blocks, C::kThreads, static_cast<std::size_t>(C::kSharedBytes)}, stream, p);
}

}  // namespace

// H200, B4 T2048 H32 G8. D64: 0.159 ms in turns, 0.167 without, 0.197 with two warpgroups. D128: 0.235 ms in turns,
// 0.304 without; 0.263 with three warpgroups and 64 keys. The next queries fetched early are worth 7 to 8%.
cudaError_t launch_attention_hopper_forward(const AttentionForwardArgs& args, cudaStream_t stream) {
  switch (args.shape.width) {
    case 64: return hopper_forward<Forward<64, 3, 128, 2, true>>(args, stream);
    case 80: return hopper_forward<Forward<80, 2, 128, 2, true>>(args, stream);
    case 96: return hopper_forward<Forward<96, 2, 128, 2, true>>(args, stream);
    case 128: return hopper_forward<Forward<128, 2, 128, 2, true>>(args, stream);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace ferry::kernels::attention
