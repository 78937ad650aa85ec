// SPDX-License-Identifier: Apache-2.0
// A block for Hopper that owns 64 queries per consuming warpgroup and streams the keys and values that they see: the
// forward pass and d_q. It stays on its multiprocessor and takes tile after tile of queries, the longest first.
// Source: Shah et al. 2024, arXiv:2407.08608, algorithm 1.
#pragma once

#include "kernels/attention_hopper.cuh"

namespace ferry::kernels::attention {

/// kOwnTiles: 1 for q, 2 for q and d_o.
template <int kWidth_, int kGroups_, int kKeys_, int kStages_, int kOwnTiles_>
struct KeyStream : Groups<kGroups_> {
  static constexpr int kWidth = kWidth_;
  static constexpr int kGroups = kGroups_;
  static constexpr int kRows = 64 * kGroups;
  static constexpr int kKeys = kKeys_;
  static constexpr int kStages = kStages_;
  static constexpr int kOwnTiles = kOwnTiles_;

  static constexpr int kQBytes = kTileBytes<kRows, kWidth>;
  static constexpr int kKBytes = kTileBytes<kKeys, kWidth>;
  static constexpr int kKPlace = kOwnTiles * kQBytes;
  static constexpr int kVPlace = kKPlace + kStages * kKBytes;
  static constexpr int kBarrierPlace = kVPlace + kStages * kKBytes;
  static constexpr int kSharedBytes = kBarrierPlace + 8 * (2 + 4 * kStages) + kSharedAlignment;
};

/// Places in shared memory.
template <class C>
struct StreamShared {
  uint32_t base;
  __device__ uint32_t q() const { return base; }
  __device__ uint32_t d_o() const { return base + C::kQBytes; }
  __device__ uint32_t k(int stage) const { return base + C::kKPlace + stage * C::kKBytes; }
  __device__ uint32_t v(int stage) const { return base + C::kVPlace + stage * C::kKBytes; }
  __device__ uint32_t barrier(int index) const { return base + C::kBarrierPlace + 8 * index; }
  __device__ uint32_t q_full() const { return barrier(0); }
  __device__ uint32_t q_empty() const { return barrier(1); }
  __device__ uint32_t k_full(int stage) const { return barrier(2 + stage); }
  __device__ uint32_t k_empty(int stage) const { return barrier(2 + C::kStages + stage); }
  __device__ uint32_t v_full(int stage) const { return barrier(2 + 2 * C::kStages + stage); }
  __device__ uint32_t v_empty(int stage) const { return barrier(2 + 3 * C::kStages + stage); }
};

/// One thread, before anyone waits.
template <class C>
__device__ __forceinline__ void init_barriers(const StreamShared<C>& shared) {
  barrier_init(shared.q_full(), 1);
  barrier_init(shared.q_empty(), C::kGroups);
  for (int stage = 0; stage < C::kStages; ++stage) {
    barrier_init(shared.k_full(stage), 1);
    barrier_init(shared.v_full(stage), 1);
    barrier_init(shared.k_empty(stage), 4 * C::kGroups);
    barrier_init(shared.v_empty(stage), 4 * C::kGroups);
  }
  barrier_init_fence();
}

/// One thread.
template <class C, class Params>
__device__ __forceinline__ void produce_keys(const Params& p, const StreamShared<C>& shared) {
  Ring<C::kStages> ring;
  int q_parity = 1;
  for (int round = 0; round < n_rounds<C::kRows>(p.sizes); ++round) {
    QueryTile tile;
    if (!query_tile<C::kRows, C::kKeys>(p.sizes, round, tile)) continue;
    const int kv_head = tile.head / (p.sizes.n_heads / p.sizes.n_kv_heads);
    barrier_wait(shared.q_empty(), q_parity);
    q_parity ^= 1;
    barrier_expect(shared.q_full(), C::kOwnTiles * C::kQBytes);
    copy_tile_in<C::kRows, C::kWidth>(shared.q(), &p.q, shared.q_full(), tile.head, tile.first, tile.batch);
    if constexpr (C::kOwnTiles == 2) {
      copy_tile_in<C::kRows, C::kWidth>(shared.d_o(), &p.d_o, shared.q_full(), tile.head, tile.first, tile.batch);
    }
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

/// Passes over a tile of keys that none of the warpgroup's queries sees.
template <class C>
__device__ __forceinline__ void skip_keys(const StreamShared<C>& shared, Ring<C::kStages>& k_ring,
                                          Ring<C::kStages>& v_ring) {
  barrier_wait(shared.k_full(k_ring.stage), k_ring.parity);
  release(shared.k_empty(k_ring.stage));
  k_ring.next();
  barrier_wait(shared.v_full(v_ring.stage), v_ring.parity);
  release(shared.v_empty(v_ring.stage));
  v_ring.next();
}

}  // namespace ferry::kernels::attention
