// SPDX-License-Identifier: Apache-2.0
// Fused attention backward for Hopper, d_k and d_v: a block owns 64 keys per consuming warpgroup and streams the
// queries of its query heads, heads and queries ascending. Source: Dao 2023, arXiv:2307.08691, algorithm 2; Shah et al.
// 2024, arXiv:2407.08608, section 3.
#include "kernels/attention_hopper_backward.cuh"
#include "kernels/attention_parts.h"

namespace ferry::kernels::attention {
namespace {

using std::int64_t;
using std::uint32_t;

// Policy.
template <int kWidth_, int kGroups_, int kQueries_, int kStages_>
struct BackwardKeys : Groups<kGroups_> {
  static constexpr int kWidth = kWidth_;
  static constexpr int kGroups = kGroups_;
  static constexpr int kKeys = 64 * kGroups;
  static constexpr int kQueries = kQueries_;
  static constexpr int kStages = kStages_;

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
    barrier_init(shared.q_empty(stage), 4 * C::kGroups);
    barrier_init(shared.d_o_empty(stage), 4 * C::kGroups);
  }
  barrier_init_fence();
}

/// What a block works on: keys of one head of one sequence. The first keys are seen by most queries and come first.
struct KeyTile {
  int first;
  int head;
  int batch;
  int first_query;  // of the first tile of queries that sees a key of the block
};

template <class C>
__device__ __forceinline__ KeyTile key_tile(const Sizes& sizes) {
  const int n_sequences = sizes.batch * sizes.n_kv_heads;
  const int sequence = blockIdx.x % n_sequences;
  KeyTile tile;
  tile.first = blockIdx.x / n_sequences * C::kKeys;
  tile.head = sequence % sizes.n_kv_heads;
  tile.batch = sequence / sizes.n_kv_heads;
  tile.first_query = max(tile.first - (sizes.n_keys - sizes.n_queries), 0) / C::kQueries * C::kQueries;
  return tile;
}

/// One thread.
template <class C>
__device__ __forceinline__ void produce_queries(const BackwardParams& p, const KeysShared<C>& shared) {
  const KeyTile tile = key_tile<C>(p.sizes);
  const int n_shared_heads = p.sizes.n_heads / p.sizes.n_kv_heads;
  barrier_expect(shared.kv_full(), 2 * C::kKBytes);
  copy_tile_in<C::kKeys, C::kWidth>(shared.k(), &p.k, shared.kv_full(), tile.head, tile.first, tile.batch);
  copy_tile_in<C::kKeys, C::kWidth>(shared.v(), &p.v, shared.kv_full(), tile.head, tile.first, tile.batch);
  Ring<C::kStages> ring;
  for (int i = 0; i < n_shared_heads; ++i) {
    const int head = tile.head * n_shared_heads + i;
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
  release(shared.d_o_empty(stage));
  wgmma_wait<0>();
  pin(d_scores);
  release(shared.q_empty(stage));
  state.ring.next();
}

/// A tile of queries that see none of the warpgroup's keys.
template <class C>
__device__ __forceinline__ void keys_skip(const KeysShared<C>& shared, KeysState<C>& state) {
  const int stage = state.ring.stage, parity = state.ring.parity;
  barrier_wait(shared.q_full(stage), parity);
  release(shared.q_empty(stage));
  barrier_wait(shared.d_o_full(stage), parity);
  release(shared.d_o_empty(stage));
  state.ring.next();
}

template <class C>
__device__ __forceinline__ void consume_queries(const BackwardParams& p, const KeysShared<C>& shared, int group) {
  const KeyTile tile = key_tile<C>(p.sizes);
  const int warp = threadIdx.x / kLanes % 4;
  const int offset = p.sizes.n_keys - p.sizes.n_queries;
  const int group_key = tile.first + group * 64, first_key = group_key + warp * 16;
  const int n_shared_heads = p.sizes.n_heads / p.sizes.n_kv_heads;
  KeysState<C> state;
#pragma unroll
  for (int i = 0; i < C::kWidth / 2; ++i) state.d_k[i] = state.d_v[i] = 0;
  pin(state.d_k);
  pin(state.d_v);
  barrier_wait(shared.kv_full(), 0);
  const int n_tiles = n_shared_heads * ((p.sizes.n_queries - tile.first_query + C::kQueries - 1) / C::kQueries);
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
  const float scale[2] = {p.scale, p.scale};
  scale_rows(state.d_k, scale);
  store_group<C::kKeys, C::kWidth>(shared.k(), &p.d_k, group, tile.head, group_key, tile.batch, state.d_k);
  store_group<C::kKeys, C::kWidth>(shared.v(), &p.d_v, group, tile.head, group_key, tile.batch, state.d_v);
  if (threadIdx.x % kGroupThreads == 0) copy_out_wait_read();
}

/// Grid: one block per C::kKeys keys, key/value head and sequence.
template <class C>
__global__ void __launch_bounds__(C::kThreads, 1)
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
  const int64_t n_blocks = ceil_div(s.n_keys, C::kKeys) * s.n_kv_heads * s.batch;
  return launch_params(attention_hopper_backward_keys_kernel<C>, {n_blocks, C::kThreads, C::kSharedBytes}, p, stream);
}

}  // namespace

cudaError_t launch_attention_hopper_backward_keys(const AttentionBackwardArgs& args, cudaStream_t stream) {
  switch (args.shape.width) {
    case 64: return hopper_backward_keys<BackwardKeys<64, 2, 128, 2>>(args, stream);
    case 80: return hopper_backward_keys<BackwardKeys<80, 2, 64, 2>>(args, stream);
    case 96: return hopper_backward_keys<BackwardKeys<96, 2, 64, 2>>(args, stream);
    case 128: return hopper_backward_keys<BackwardKeys<128, 2, 64, 2>>(args, stream);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace ferry::kernels::attention
