// SPDX-License-Identifier: Apache-2.0
// A block for Hopper that owns 64 queries per consuming warpgroup and streams the keys and values that they see: the
// forward pass and d_q. It stays on its multiprocessor and takes tile after tile of queries, the longest first.
// Source: Shah et al. 2024, arXiv:2407.08608, algorithm 1.
#pragma once

#include "kernels/attention_hopper.cuh"

namespace ferry::kernels::attention {

/// kOwnTiles: 1 for q, 2 for q and d_o. With two of kOwnStages the next tile of queries comes while one is in work.
template <int kWidth_, int kGroups_, int kKeys_, int kStages_, int kOwnTiles_, int kOwnStages_>
struct KeyStream : Groups<kGroups_> {
  static constexpr int kWidth = kWidth_;
  static constexpr int kGroups = kGroups_;
  static constexpr int kRows = 64 * kGroups;
  static constexpr int kKeys = kKeys_;
  static constexpr int kStages = kStages_;
  static constexpr int kOwnTiles = kOwnTiles_;
  static constexpr int kOwnStages = kOwnStages_;

  static constexpr int kQBytes = kTileBytes<kRows, kWidth>;
  static constexpr int kKBytes = kTileBytes<kKeys, kWidth>;
  static constexpr int kKPlace = kOwnStages * kOwnTiles * kQBytes;
  static constexpr int kVPlace = kKPlace + kStages * kKBytes;
  static constexpr int kBarrierPlace = kVPlace + kStages * kKBytes;
  static constexpr int kSharedBytes = kBarrierPlace + 8 * (2 * kOwnStages + 4 * kStages) + kSharedAlignment;
  static_assert(kSharedBytes <= 227 * 1024);
};

/// Places in shared memory.
template <class C>
struct StreamShared {
  std::uint32_t base;
  __device__ std::uint32_t q(int stage) const { return base + stage * C::kOwnTiles * C::kQBytes; }
  __device__ std::uint32_t d_o(int stage) const { return q(stage) + C::kQBytes; }
  __device__ std::uint32_t k(int stage) const { return base + C::kKPlace + stage * C::kKBytes; }
  __device__ std::uint32_t v(int stage) const { return base + C::kVPlace + stage * C::kKBytes; }
  __device__ std::uint32_t barrier(int index) const { return base + C::kBarrierPlace + 8 * index; }
  __device__ std::uint32_t k_full(int stage) const { return barrier(stage); }
  __device__ std::uint32_t k_empty(int stage) const { return barrier(C::kStages + stage); }
  __device__ std::uint32_t v_full(int stage) const { return barrier(2 * C::kStages + stage); }
  __device__ std::uint32_t v_empty(int stage) const { return barrier(3 * C::kStages + stage); }
  __device__ std::uint32_t q_full(int stage) const { return barrier(4 * C::kStages + stage); }
  __device__ std::uint32_t q_empty(int stage) const { return barrier(4 * C::kStages + C::kOwnStages + stage); }
};

/// One thread, before anyone waits.
template <class C>
__device__ __forceinline__ void init_barriers(const StreamShared<C>& shared) {
  for (int stage = 0; stage < C::kOwnStages; ++stage) {
    barrier_init(shared.q_full(stage), 1);
    barrier_init(shared.q_empty(stage), C::kGroups);
  }
  for (int stage = 0; stage < C::kStages; ++stage) {
    barrier_init(shared.k_full(stage), 1);
    barrier_init(shared.v_full(stage), 1);
    barrier_init(shared.k_empty(stage), kGroupThreads * C::kGroups);
    barrier_init(shared.v_empty(stage), kGroupThreads * C::kGroups);
  }
  barrier_init_fence();
}

/// One thread.
template <class C, class Params>
__device__ __forceinline__ void produce_keys(const Params& p, const StreamShared<C>& shared) {
  Ring<C::kStages> ring;
  Ring<C::kOwnStages> own;
  for (int round = 0; round < n_rounds<C::kRows>(p.sizes); ++round) {
    QueryTile tile;
    if (!query_tile<C::kRows, C::kKeys>(p.sizes, round, tile)) continue;
    const int kv_head = tile.head / (p.sizes.n_heads / p.sizes.n_kv_heads);
    const std::uint32_t q_full = shared.q_full(own.stage);
    barrier_wait(shared.q_empty(own.stage), own.parity ^ 1);
    barrier_expect(q_full, C::kOwnTiles * C::kQBytes);
    copy_tile_in<C::kRows, C::kWidth>(shared.q(own.stage), &p.q, q_full, tile.head, tile.first, tile.batch);
    if constexpr (C::kOwnTiles == 2) {
      copy_tile_in<C::kRows, C::kWidth>(shared.d_o(own.stage), &p.d_o, q_full, tile.head, tile.first, tile.batch);
    }
    own.next();
    for (int j = 0; j < tile.n_key_tiles; ++j, ring.next()) {
      const int stage = ring.stage;
      barrier_wait(shared.k_empty(stage), ring.parity ^ 1);
      barrier_expect(shared.k_full(stage), C::kKBytes);
      copy_tile_in<C::kKeys, C::kWidth>(shared.k(stage), &p.k, shared.k_full(stage), kv_head, j * C::kKeys, tile.batch);
      barrier_wait(shared.v_empty(stage), ring.parity ^ 1);
      barrier_expect(shared.v_full(stage), C::kKBytes);
      copy_tile_in<C::kKeys, C::kWidth>(shared.v(stage), &p.v, shared.v_full(stage), kv_head, j * C::kKeys, tile.batch);
    }
  }
}

/// What a consuming warpgroup knows of the block's own tiles. A tile is given back when the result that went out
/// through it has been read, which is waited for as late as the next tile's first product.
template <class C>
struct OwnTiles {
  Ring<C::kOwnStages> ring;
  int held_stage = -1;
};

template <class C>
__device__ __forceinline__ void release_own(const StreamShared<C>& shared, OwnTiles<C>& own) {
  if (own.held_stage >= 0 && threadIdx.x % kGroupThreads == 0) {
    copy_out_wait_read();
    barrier_arrive(shared.q_empty(own.held_stage));
  }
  own.held_stage = -1;
}

template <class C>
__device__ __forceinline__ void end_own(const StreamShared<C>& shared, OwnTiles<C>& own) {
  own.held_stage = own.ring.stage;
  own.ring.next();
  if constexpr (C::kOwnStages == 1) release_own(shared, own);
}

/// Passes over a tile of keys that none of the warpgroup's queries sees.
template <class C>
__device__ __forceinline__ void skip_keys(const StreamShared<C>& shared, Ring<C::kStages>& k_ring,
                                          Ring<C::kStages>& v_ring) {
  barrier_wait(shared.k_full(k_ring.stage), k_ring.parity);
  barrier_arrive(shared.k_empty(k_ring.stage));
  k_ring.next();
  barrier_wait(shared.v_full(v_ring.stage), v_ring.parity);
  barrier_arrive(shared.v_empty(v_ring.stage));
  v_ring.next();
}

}  // namespace ferry::kernels::attention
