// SPDX-License-Identifier: Apache-2.0
// Fused attention backward for Hopper, d_k and d_v: a block owns 64 keys per consuming warpgroup and streams the
// queries of its query heads, heads and queries ascending.
// Source: Dao 2023, arXiv:2307.08691, algorithm 2; Shah et al. 2024, arXiv:2407.08608, section 3.
#include "kernels/attention_hopper_backward.cuh"
#include "kernels/attention_parts.h"

namespace ferry::kernels::attention {
namespace {

using std::int64_t;
using std::uint32_t;

// Policy.
template <int kWidth_, int kGroups_, int kQueries_, int kStages_, int kSplit_>
struct BackwardKeys : Groups<kGroups_> {
  static constexpr int kWidth = kWidth_;
  static constexpr int kGroups = kGroups_;
  static constexpr int kKeys = 64 * kGroups;
  static constexpr int kQueries = kQueries_;
  static constexpr int kStages = kStages_;
  static constexpr int kSplit = kSplit_;  // blocks of a cluster that share the query heads of a tile of keys

  static constexpr int kKBytes = kTileBytes<kKeys, kWidth>;
  static constexpr int kQBytes = kTileBytes<kQueries, kWidth>;
  static constexpr int kRowBytes = 4 * kQueries;  // of lse2, of delta
  static constexpr int kQPlace = 2 * kKBytes;
  static constexpr int kDOPlace = kQPlace + kStages * kQBytes;
  static constexpr int kLsePlace = kDOPlace + kStages * kQBytes;
  static constexpr int kDeltaPlace = kLsePlace + kStages * kRowBytes;
  static constexpr int kBarrierPlace = kDeltaPlace + kStages * kRowBytes;
  static constexpr int kSharedBytes = kBarrierPlace + 8 * (1 + 4 * kStages) + kSharedAlignment;
};

template <class C>
struct KeysShared {
  uint32_t base;
  __device__ uint32_t k() const { return base; }
  __device__ uint32_t v() const { return base + C::kKBytes; }
  __device__ uint32_t q(int stage) const { return base + C::kQPlace + stage * C::kQBytes; }
  __device__ uint32_t d_o(int stage) const { return base + C::kDOPlace + stage * C::kQBytes; }
  __device__ uint32_t lse2(int stage) const { return base + C::kLsePlace + stage * C::kRowBytes; }
  __device__ uint32_t delta(int stage) const { return base + C::kDeltaPlace + stage * C::kRowBytes; }
  __device__ uint32_t barrier(int index) const { return base + C::kBarrierPlace + 8 * index; }
  __device__ uint32_t kv_full() const { return barrier(0); }
  __device__ uint32_t q_full(int stage) const { return barrier(1 + stage); }
  __device__ uint32_t q_empty(int stage) const { return barrier(1 + C::kStages + stage); }
  __device__ uint32_t d_o_full(int stage) const { return barrier(1 + 2 * C::kStages + stage); }
  __device__ uint32_t d_o_empty(int stage) const { return barrier(1 + 3 * C::kStages + stage); }
};

/// One thread, before anyone waits.
template <class C>
__device__ __forceinline__ void init_barriers(const KeysShared<C>& shared) {
  barrier_init(shared.kv_full(), 1);
  for (int stage = 0; stage < C::kStages; ++stage) {
    barrier_init(shared.q_full(stage), 1);
    barrier_init(shared.d_o_full(stage), 1);
    barrier_init(shared.q_empty(stage), kGroupThreads * C::kGroups);
    barrier_init(shared.d_o_empty(stage), kGroupThreads * C::kGroups);
  }
  barrier_init_fence();
}

/// What a block works on: keys of one head of one sequence. The first keys are seen by most queries and come first.
struct KeyTile {
  int first;
  int head;
  int batch;
  int first_query;       // of the first tile of queries that sees a key of the block
  int first_query_head;  // of the block's own
  int n_query_heads;
};

template <class C>
__device__ __forceinline__ KeyTile key_tile(const Sizes& sizes) {
  const int n_tiles = (sizes.n_keys + C::kKeys - 1) / C::kKeys, n_shared_heads = sizes.n_heads / sizes.n_kv_heads;
  const TilePlace at = tile_place(blockIdx.x / C::kSplit, n_tiles, sizes.batch * sizes.n_kv_heads, sizes.n_kv_heads, 1,
                                  max(4 / n_shared_heads, 1));
  KeyTile tile;
  tile.first = at.place * C::kKeys;
  tile.head = at.head;
  tile.batch = at.batch;
  tile.first_query = max(tile.first - (sizes.n_keys - sizes.n_queries), 0) / C::kQueries * C::kQueries;
  tile.n_query_heads = n_shared_heads / C::kSplit;
  tile.first_query_head = (tile.head * C::kSplit + blockIdx.x % C::kSplit) * tile.n_query_heads;
  return tile;
}

/// One thread.
template <class C>
__device__ __forceinline__ void produce_queries(const BackwardParams& p, const KeysShared<C>& shared) {
  const KeyTile tile = key_tile<C>(p.sizes);
  barrier_expect(shared.kv_full(), 2 * C::kKBytes);
  copy_tile_in<C::kKeys, C::kWidth>(shared.k(), &p.k, shared.kv_full(), tile.head, tile.first, tile.batch);
  copy_tile_in<C::kKeys, C::kWidth>(shared.v(), &p.v, shared.kv_full(), tile.head, tile.first, tile.batch);
  Ring<C::kStages> ring;
  for (int i = 0; i < tile.n_query_heads; ++i) {
    const int head = tile.first_query_head + i;
    const int64_t row = static_cast<int64_t>(tile.batch * p.sizes.n_heads + head) * p.padded_queries;
    for (int query = tile.first_query; query < p.sizes.n_queries; query += C::kQueries, ring.next()) {
      const int stage = ring.stage;
      const uint32_t q_full = shared.q_full(stage), d_o_full = shared.d_o_full(stage);
      barrier_wait(shared.q_empty(stage), ring.parity ^ 1);
      barrier_expect(q_full, C::kQBytes + C::kRowBytes);
      copy_tile_in<C::kQueries, C::kWidth>(shared.q(stage), &p.q, q_full, head, query, tile.batch);
      copy_floats_in(shared.lse2(stage), p.lse2 + row + query, C::kRowBytes, q_full);
      barrier_wait(shared.d_o_empty(stage), ring.parity ^ 1);
      barrier_expect(d_o_full, C::kQBytes + C::kRowBytes);
      copy_tile_in<C::kQueries, C::kWidth>(shared.d_o(stage), &p.d_o, d_o_full, head, query, tile.batch);
      copy_floats_in(shared.delta(stage), p.delta + row + query, C::kRowBytes, d_o_full);
    }
  }
}

/// A consuming warpgroup's 64 keys.
template <class C>
struct KeysState {
  float d_k[C::kWidth / 2];
  float d_v[C::kWidth / 2];
  Ring<C::kStages> ring;
};

template <class C>
__device__ __forceinline__ void keys_step(const BackwardParams& p, const KeysShared<C>& shared, int group, bool masked,
                                          int first_key, int first_query, KeysState<C>& state) {
  const int stage = state.ring.stage, parity = state.ring.parity;
  const uint32_t own_rows = group * 64 * kBlockRowBytes, columns = threadIdx.x % 4 * 8;
  float s[C::kQueries / 2], d_p[C::kQueries / 2];
  uint32_t weights[C::kQueries / 4], d_scores[C::kQueries / 4];
  barrier_wait(shared.q_full(stage), parity);
  product_rows<C::kWidth, C::kKeys, C::kQueries>(s, shared.k() + own_rows, shared.q(stage));
  wgmma_commit();
  barrier_wait(shared.d_o_full(stage), parity);
  product_rows<C::kWidth, C::kKeys, C::kQueries>(d_p, shared.v() + own_rows, shared.d_o(stage));
  wgmma_commit();
  wgmma_wait<1>();
  pin(s);
  if (masked) mask_queries(s, first_key, first_query);
  columns_to_probabilities(s, p.scale2, shared.lse2(stage) + columns);
  pack_fragment(weights, s);
  pin(weights);
  product_columns<C::kQueries>(state.d_v, weights, shared.d_o(stage));
  wgmma_commit();
  wgmma_wait<1>();
  pin(d_p);
  columns_to_d_scores(d_scores, s, d_p, shared.delta(stage) + columns);
  pin(d_scores);
  product_columns<C::kQueries>(state.d_k, d_scores, shared.q(stage));
  wgmma_commit();
  wgmma_wait<1>();
  pin(weights);
  barrier_arrive(shared.d_o_empty(stage));
  wgmma_wait<0>();
  pin(d_scores);
  barrier_arrive(shared.q_empty(stage));
  state.ring.next();
}

/// A tile of queries that see none of the warpgroup's keys.
template <class C>
__device__ __forceinline__ void keys_skip(const KeysShared<C>& shared, KeysState<C>& state) {
  const int stage = state.ring.stage, parity = state.ring.parity;
  barrier_wait(shared.q_full(stage), parity);
  barrier_arrive(shared.q_empty(stage));
  barrier_wait(shared.d_o_full(stage), parity);
  barrier_arrive(shared.d_o_empty(stage));
  state.ring.next();
}

/// Sums over the cluster, blocks ascending. Each block sums a part of the columns, of all keys: the others lay theirs
/// into its shared memory, which no one needs any more. A cluster's producers take part in the two meetings.
template <class C>
__device__ __forceinline__ void store_split_sums(const BackwardParams& p, const KeysShared<C>& shared, int group_key,
                                                 const KeyTile& tile, const KeysState<C>& state) {
  constexpr int kColumns = C::kWidth / 8, kMost = (kColumns + C::kSplit - 1) / C::kSplit;  // eight at a time
  constexpr int kConsumers = kGroupThreads * C::kGroups, kSumBytes = 16 * kConsumers;
  static_assert(C::kSplit * kMost * 2 * kSumBytes <= C::kLsePlace);
  const int rank = blockIdx.x % C::kSplit, lane = threadIdx.x % kLanes;
  const uint32_t own = shared.base + (threadIdx.x - kGroupThreads) * 16;
  cluster_sync();
#pragma unroll
  for (int n = 0; n < kColumns; ++n) {
    const int r = ((n + 1) * C::kSplit - 1) / kColumns, place = rank * kMost + n - r * kColumns / C::kSplit;
    const uint32_t to = cluster_address(own + place * 2 * kSumBytes, r);
    store_cluster_quad(to, state.d_k + 4 * n);
    store_cluster_quad(to + kSumBytes, state.d_v + 4 * n);
  }
  cluster_sync();
  const int first = rank * kColumns / C::kSplit, end = (rank + 1) * kColumns / C::kSplit;
  const int row = group_key + threadIdx.x / kLanes % 4 * 16 + lane / 4;
  for (int n = first; n < end; ++n) {
    float d_k[4] = {}, d_v[4] = {};
#pragma unroll
    for (int s = 0; s < C::kSplit; ++s) {
      const uint32_t from = own + (s * kMost + n - first) * 2 * kSumBytes;
      add_shared_quad(d_k, from);
      add_shared_quad(d_v, from + kSumBytes);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int key = row + 8 * r, column = 8 * n + lane % 4 * 2;
      if (key >= p.sizes.n_keys) continue;
      auto* const to_k = head_row<__nv_bfloat16>(p.d_k_rows, tile.batch, key, tile.head) + column;
      auto* const to_v = head_row<__nv_bfloat16>(p.d_v_rows, tile.batch, key, tile.head) + column;
      *reinterpret_cast<uint32_t*>(to_k) = pack_pair(d_k[2 * r] * p.scale, d_k[2 * r + 1] * p.scale);
      *reinterpret_cast<uint32_t*>(to_v) = pack_pair(d_v[2 * r], d_v[2 * r + 1]);
    }
  }
}

template <class C>
__device__ __forceinline__ void store_sums(const BackwardParams& p, const KeysShared<C>& shared, int group,
                                           const KeyTile& tile, KeysState<C>& state) {
  const int group_key = tile.first + group * 64;
  const float scale[2] = {p.scale, p.scale};
  scale_rows(state.d_k, scale);
  store_group<C::kKeys, C::kWidth>(shared.k(), &p.d_k, group, tile.head, group_key, tile.batch, state.d_k);
  store_group<C::kKeys, C::kWidth>(shared.v(), &p.d_v, group, tile.head, group_key, tile.batch, state.d_v);
  if (threadIdx.x % kGroupThreads == 0) copy_out_wait_read();
}

template <class C>
__device__ __forceinline__ void consume_queries(const BackwardParams& p, const KeysShared<C>& shared, int group) {
  const KeyTile tile = key_tile<C>(p.sizes);
  const int warp = threadIdx.x / kLanes % 4;
  const int offset = p.sizes.n_keys - p.sizes.n_queries;
  const int group_key = tile.first + group * 64, first_key = group_key + warp * 16;
  KeysState<C> state;
#pragma unroll
  for (int i = 0; i < C::kWidth / 2; ++i) state.d_k[i] = state.d_v[i] = 0;
  pin(state.d_k);
  pin(state.d_v);
  barrier_wait(shared.kv_full(), 0);
  const int n_tiles = tile.n_query_heads * ((p.sizes.n_queries - tile.first_query + C::kQueries - 1) / C::kQueries);
  int query = tile.first_query, i = 0;
  do {
    const bool masked = query + offset < group_key + 63;
    if (query + C::kQueries - 1 + offset < group_key) {
      keys_skip<C>(shared, state);
    } else {
      keys_step<C>(p, shared, group, masked, first_key, query + offset, state);
    }
    query += C::kQueries;
    if (query >= p.sizes.n_queries) query = tile.first_query;
  } while (++i < n_tiles);
  pin(state.d_k);
  pin(state.d_v);
  if constexpr (C::kSplit > 1) {
    store_split_sums<C>(p, shared, group_key, tile, state);
  } else {
    store_sums<C>(p, shared, group, tile, state);
  }
}

/// Grid: a cluster of C::kSplit blocks per C::kKeys keys, key/value head and sequence.
template <class C>
__global__ void __cluster_dims__(C::kSplit, 1, 1) __launch_bounds__(C::kThreads, 1)
    attention_hopper_backward_keys_kernel(const __grid_constant__ BackwardParams p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ unsigned char memory[];
  const KeysShared<C> shared{align_shared(memory)};
  if (threadIdx.x == 0) init_barriers(shared);
  __syncthreads();
  const int group = warpgroup_index();
  if (group == 0) {
    keep_registers<C::kProducerRegisters>();
    if (threadIdx.x == 0) produce_queries<C>(p, shared);
    if constexpr (C::kSplit > 1) {
      __syncwarp();
      cluster_sync();
      cluster_sync();
    }
  } else {
    take_registers<C::kConsumerRegisters>();
    consume_queries<C>(p, shared, group - 1);
  }
#endif
}

// Launcher.

template <class C>
cudaError_t hopper_backward_keys(const AttentionPlainBackwardArgs& args, cudaStream_t stream) {
  const AttentionShape& s = args.shape;
  BackwardParams p = backward_params(args);
  const cudaError_t error = Maps()
                                .add(&p.q, args.q, {s.batch, s.n_queries, s.n_heads, s.width, C::kQueries})
                                .add(&p.d_o, args.d_o, {s.batch, s.n_queries, s.n_heads, s.width, C::kQueries})
                                .add(&p.k, args.k, {s.batch, s.n_keys, s.n_kv_heads, s.width, C::kKeys})
                                .add(&p.v, args.v, {s.batch, s.n_keys, s.n_kv_heads, s.width, C::kKeys})
                                .add(&p.d_k, args.d_k, {s.batch, s.n_keys, s.n_kv_heads, s.width, 64})
                                .add(&p.d_v, args.d_v, {s.batch, s.n_keys, s.n_kv_heads, s.width, 64})
                                .error();
  if (error != cudaSuccess) return error;
  p.d_k_rows = args.d_k;
  p.d_v_rows = args.d_v;
  const int64_t n_blocks = ceil_div(s.n_keys, C::kKeys) * s.n_kv_heads * s.batch * C::kSplit;
  return launch_params(attention_hopper_backward_keys_kernel<C>, {n_blocks, C::kThreads, C::kSharedBytes}, p, stream);
}

/// Up to so many tiles of keys, a multiprocessor has one of them, and the first ones are twice as long as the mean.
/// H200, B1 T2048 H32 G8 D128, 128 tiles: 0.211 ms whole, 0.128 ms in halves, 0.162 ms in quarters. B4, 512 tiles:
/// 0.444 ms whole, 0.491 ms in halves.
constexpr int64_t kFewTiles = 132;

template <int kWidth, int kQueries>
cudaError_t hopper_backward_keys_of(const AttentionBackwardArgs& args, cudaStream_t stream) {
  const AttentionShape& s = args.shape;
  const int64_t n_tiles = ceil_div(s.n_keys, 128) * s.n_kv_heads * s.batch, n_shared_heads = s.n_heads / s.n_kv_heads;
  if (n_tiles <= kFewTiles && n_shared_heads % 2 == 0) {
    return hopper_backward_keys<BackwardKeys<kWidth, 2, kQueries, 2, 2>>(args, stream);
  }
  return hopper_backward_keys<BackwardKeys<kWidth, 2, kQueries, 2, 1>>(args, stream);
}

}  // namespace

// Tiles of queries, D64: 128 take 0.251 ms, 64 take 0.309 (H200, B4 T2048 H32 G8); wider heads leave registers for 64.
cudaError_t launch_attention_hopper_backward_keys(const AttentionBackwardArgs& args, cudaStream_t stream) {
  switch (args.shape.width) {
    case 64: return hopper_backward_keys_of<64, 128>(args, stream);
    case 80: return hopper_backward_keys_of<80, 64>(args, stream);
    case 96: return hopper_backward_keys_of<96, 64>(args, stream);
    case 128: return hopper_backward_keys_of<128, 64>(args, stream);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace ferry::kernels::attention
