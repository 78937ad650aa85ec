// SPDX-License-Identifier: Apache-2.0
// Fused attention backward for Hopper, d_q: a block owns 64 queries per consuming warpgroup and streams keys and
// values, as the forward pass does.
// Source: Dao 2023, arXiv:2307.08691, algorithm 2; Shah et al. 2024, arXiv:2407.08608, section 3.
#include "kernels/attention_hopper_backward.cuh"
#include "kernels/attention_hopper_stream.cuh"
#include "kernels/attention_parts.h"

namespace ferry::kernels::attention {
namespace {

using std::int64_t;
using std::uint32_t;

template <int kWidth, int kGroups, int kKeys, int kStages, int kHeld_, int kOwnStages = 2>
struct BackwardQueries : KeyStream<kWidth, kGroups, kKeys, kStages, 2, kOwnStages> {
  static constexpr int kHeld = kHeld_;  // in registers: 0 nothing, 1 the queries, 2 d_o too
};

/// A consuming warpgroup's 64 queries of one tile.
template <class C>
struct QueriesState {
  uint32_t q_rows;  // address of the warpgroup's queries; d_o follows by kQBytes
  float d_q[C::kWidth / 2];
  uint32_t q[C::kHeld > 0 ? C::kWidth / 4 : 1];
  uint32_t d_o[C::kHeld > 1 ? C::kWidth / 4 : 1];
  uint32_t d_scores[C::kKeys / 4];
  float lse2[2];
  float delta[2];
  int held_stage;  // the product with this stage's keys is under way
};

template <class C, bool kMasked>
__device__ __forceinline__ void queries_step(const BackwardParams& p, const StreamShared<C>& shared, OwnTiles<C>& own,
                                             Ring<C::kStages>& ring, int first_row, int first_key,
                                             QueriesState<C>& state) {
  const int stage = ring.stage;
  float s[C::kKeys / 2], d_p[C::kKeys / 2];
  barrier_wait(shared.k_full(stage), ring.parity);
  if constexpr (C::kHeld > 0) {
    product_held_rows<C::kKeys>(s, state.q, shared.k(stage));
  } else {
    product_rows<C::kWidth, C::kRows, C::kKeys>(s, state.q_rows, shared.k(stage));
  }
  wgmma_commit();
  barrier_wait(shared.v_full(stage), ring.parity);
  if constexpr (C::kHeld > 1) {
    product_held_rows<C::kKeys>(d_p, state.d_o, shared.v(stage));
  } else {
    product_rows<C::kWidth, C::kRows, C::kKeys>(d_p, state.q_rows + C::kQBytes, shared.v(stage));
  }
  wgmma_commit();
  wgmma_wait<1>();
  pin(s);
  pin(state.d_scores);
  if (state.held_stage >= 0) {
    barrier_arrive(shared.k_empty(state.held_stage));
  } else {
    release_own(shared, own);
  }
  if constexpr (kMasked) mask_keys(s, first_row, first_key);
  rows_to_probabilities(s, p.scale2, state.lse2);
  pin(s);
  barrier_wait(shared.v_full(stage), ring.parity);  // passed: keeps the wait below behind the exponentials
  wgmma_wait<0>();
  pin(d_p);
  barrier_arrive(shared.v_empty(stage));
  rows_to_d_scores(state.d_scores, s, d_p, state.delta);
  pin(state.d_scores);
  product_columns<C::kKeys>(state.d_q, state.d_scores, shared.k(stage));
  wgmma_commit();
  state.held_stage = stage;
  ring.next();
}

template <class C>
__device__ __forceinline__ void queries_begin(const BackwardParams& p, const QueryTile& tile, int row,
                                              QueriesState<C>& state) {
  const int64_t first = static_cast<int64_t>(tile.batch * p.sizes.n_heads + tile.head) * p.padded_queries;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int query = min(row + 8 * r, p.padded_queries - 1);
    state.lse2[r] = p.lse2[first + query];
    state.delta[r] = p.delta[first + query];
  }
  state.held_stage = -1;
#pragma unroll
  for (float& value : state.d_q) value = 0;
}

template <class C>
__device__ __forceinline__ void queries_tile(const BackwardParams& p, const StreamShared<C>& shared, int group,
                                             const QueryTile& tile, int n_group_tiles, OwnTiles<C>& own,
                                             Ring<C::kStages>& ring) {
  const int warp = threadIdx.x / kLanes % 4, lane = threadIdx.x % kLanes;
  const int first = tile.first + group * 64, group_row = first + p.sizes.n_keys - p.sizes.n_queries;
  const int first_row = group_row + warp * 16;                         // the last key that the warp's first query sees
  const int n_whole = min((group_row + 1) / C::kKeys, n_group_tiles);  // tiles of keys that all 64 queries see
  const uint32_t q = shared.q(own.ring.stage);
  QueriesState<C> state;
  queries_begin<C>(p, tile, first + warp * 16 + lane / 4, state);
  state.q_rows = q + group * 64 * kBlockRowBytes;
  if constexpr (C::kHeld > 0) load_rows<C::kRows>(state.q, state.q_rows);
  if constexpr (C::kHeld > 1) load_rows<C::kRows>(state.d_o, state.q_rows + C::kQBytes);
  int j = 0;
  for (; j < n_whole; ++j) queries_step<C, false>(p, shared, own, ring, first_row, j * C::kKeys, state);
  for (; j < n_group_tiles; ++j) queries_step<C, true>(p, shared, own, ring, first_row, j * C::kKeys, state);
  wgmma_wait<0>();
  pin(state.d_q);
  barrier_arrive(shared.k_empty(state.held_stage));
  const float scale[2] = {p.scale, p.scale};
  scale_rows(state.d_q, scale);
  store_group<C::kRows, C::kWidth>(q, &p.d_q, group, tile.head, first, tile.batch, state.d_q);
}

template <class C>
__device__ __forceinline__ void consume_keys(const BackwardParams& p, const StreamShared<C>& shared, int group) {
  Ring<C::kStages> ring;
  OwnTiles<C> own;
  for (int round = 0; round < n_rounds<C::kRows>(p.sizes); ++round) {
    QueryTile tile;
    if (!query_tile<C::kRows, C::kKeys>(p.sizes, round, tile)) continue;
    const int n_group_tiles = key_tiles<C::kKeys>(p.sizes, tile.first + group * 64);
    barrier_wait(shared.q_full(own.ring.stage), own.ring.parity);
    if (n_group_tiles > 0) {
      queries_tile<C>(p, shared, group, tile, n_group_tiles, own, ring);
    } else {
      named_sync<kGroupThreads>(kStoreBarrier + group);  // all four warps have seen the tile that thread 0 gives back
    }
    release_own(shared, own);
    for (int j = n_group_tiles; j < tile.n_key_tiles; ++j) {
      Ring<C::kStages> v_ring = ring;
      skip_keys<C>(shared, ring, v_ring);
    }
    end_own(shared, own);
  }
  release_own(shared, own);
}

/// Grid: as many blocks as multiprocessors, or as tiles where these are fewer.
template <class C>
__global__ void __launch_bounds__(C::kThreads, 1)
    attention_hopper_backward_queries_kernel(const __grid_constant__ BackwardParams p) {
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
    consume_keys<C>(p, shared, group - 1);
  }
#endif
}

// Launcher.

template <class C>
cudaError_t hopper_backward_queries(const AttentionPlainBackwardArgs& args, cudaStream_t stream) {
  const AttentionShape& s = args.shape;
  BackwardParams p = backward_params(args);
  const cudaError_t error = Maps()
                                .add(&p.q, args.q, {s.batch, s.n_queries, s.n_heads, s.width, C::kRows})
                                .add(&p.d_o, args.d_o, {s.batch, s.n_queries, s.n_heads, s.width, C::kRows})
                                .add(&p.k, args.k, {s.batch, s.n_keys, s.n_kv_heads, s.width, C::kKeys})
                                .add(&p.v, args.v, {s.batch, s.n_keys, s.n_kv_heads, s.width, C::kKeys})
                                .add(&p.d_q, args.d_q, {s.batch, s.n_queries, s.n_heads, s.width, 64})
                                .error();
  if (error != cudaSuccess) return error;
  const int64_t n_tiles = ceil_div(s.n_queries, C::kRows) * s.n_heads * s.batch;
  const int64_t n_blocks = n_tiles < n_multiprocessors() ? n_tiles : n_multiprocessors();
  return launch_params(attention_hopper_backward_queries_kernel<C>, {n_blocks, C::kThreads, C::kSharedBytes}, p,
                       stream);
}

// H200, B4 T2048 H32 G8. D64: 0.193 ms, 0.201 with two warpgroups. D128: 0.314 ms; without the next queries fetched
// early 0.337, with nothing held in registers besides 0.351.
cudaError_t backward_queries(const AttentionBackwardArgs& args, cudaStream_t stream) {
  switch (args.shape.width) {
    case 64: return hopper_backward_queries<BackwardQueries<64, 3, 64, 4, 1>>(args, stream);
    case 80: return hopper_backward_queries<BackwardQueries<80, 2, 64, 3, 2>>(args, stream);
    case 96: return hopper_backward_queries<BackwardQueries<96, 2, 64, 3, 2>>(args, stream);
    case 128: return hopper_backward_queries<BackwardQueries<128, 2, 64, 3, 2>>(args, stream);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace

cudaError_t launch_attention_hopper_backward(const AttentionBackwardArgs& args, cudaStream_t stream) {
  const cudaError_t error = launch_attention_hopper_backward_keys(args, stream);
  return error != cudaSuccess ? error : backward_queries(args, stream);
}

}  // namespace ferry::kernels::attention
