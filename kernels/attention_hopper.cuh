// SPDX-License-Identifier: Apache-2.0
// What the attention kernels for Hopper are made of: barriers in shared memory, clusters, the tensor copy engine, rings
// of stages, warpgroups with a register budget.
// Source: PTX ISA 8.7, sections 9.7.9.27 (tensor copies), 9.7.13.15 (mbarrier), 9.7.19.5 (setmaxnreg).
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/attention_tiles.cuh"
#include "kernels/attention_wgmma.cuh"

namespace ferry::kernels::attention {

inline constexpr int kGroupThreads = 128;  // a warpgroup

// Barriers. A phase ends when all arrivals and all announced bytes have come.

__device__ __forceinline__ void barrier_init(std::uint32_t barrier, int n_arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" : : "r"(barrier), "r"(n_arrivals) : "memory");
}
__device__ __forceinline__ void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" : : : "memory");
}
__device__ __forceinline__ void barrier_arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" : : "r"(barrier) : "memory");
}
__device__ __forceinline__ void barrier_expect(std::uint32_t barrier, int n_bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" : : "r"(barrier), "r"(n_bytes) : "memory");
}
__device__ __forceinline__ bool barrier_try_wait(std::uint32_t barrier, int parity) {
  std::uint32_t done;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.b32 %0, 1, 0, p;\n}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}
__device__ __forceinline__ void barrier_wait(std::uint32_t barrier, int parity) {
  while (!barrier_try_wait(barrier, parity)) {
  }
}

/// A barrier of the first 16 hardware ones; 0 belongs to __syncthreads.
template <int kThreads>
__device__ __forceinline__ void named_sync(int id) {
  asm volatile("bar.sync %0, %1;" : : "r"(id), "n"(kThreads) : "memory");
}
template <int kThreads>
__device__ __forceinline__ void named_arrive(int id) {
  asm volatile("bar.arrive %0, %1;" : : "r"(id), "n"(kThreads) : "memory");
}

// Clusters: blocks that run at the same time and reach each other's shared memory.

__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" : : : "memory");
}
/// The same place in the shared memory of block `rank` of the cluster.
__device__ __forceinline__ std::uint32_t cluster_address(std::uint32_t address, int rank) {
  std::uint32_t mapped;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
  return mapped;
}
__device__ __forceinline__ void store_cluster_quad(std::uint32_t to, const float* x) {
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};"
               :
               : "r"(to), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3])
               : "memory");
}
__device__ __forceinline__ void add_shared_quad(float (&sum)[4], std::uint32_t from) {
  float x[4];
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
               : "r"(from)
               : "memory");
#pragma unroll
  for (int i = 0; i < 4; ++i) sum[i] += x[i];
}

// Copies by the tensor copy engine. Coordinates: column, head, row, batch. What lies outside reads as 0 and is not
// written.

__device__ __forceinline__ void copy_in(std::uint32_t to, const CUtensorMap* map, std::uint32_t barrier, int column,
                                        int head, int row, int batch) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5, %6}], [%2];"
      :
      : "r"(to), "l"(map), "r"(barrier), "r"(column), "r"(head), "r"(row), "r"(batch)
      : "memory");
}
__device__ __forceinline__ void copy_out(const CUtensorMap* map, std::uint32_t from, int column, int head, int row,
                                         int batch) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];"
               :
               : "l"(map), "r"(from), "r"(column), "r"(head), "r"(row), "r"(batch)
               : "memory");
}
__device__ __forceinline__ void copy_floats_in(std::uint32_t to, const float* from, int n_bytes,
                                               std::uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               :
               : "r"(to), "l"(from), "r"(n_bytes), "r"(barrier)
               : "memory");
}
__device__ __forceinline__ void copy_out_commit() { asm volatile("cp.async.bulk.commit_group;" : : : "memory"); }
/// Waits until the shared memory of the thread's committed copies may be written again.
__device__ __forceinline__ void copy_out_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" : : : "memory");
}
/// Makes the thread's writes to shared memory visible to wgmma and the copy engine.
__device__ __forceinline__ void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" : : : "memory"); }

/// The tile's column blocks, each in one copy of kRows rows.
template <int kRows, int kWidth>
__device__ __forceinline__ void copy_tile_in(std::uint32_t to, const CUtensorMap* map, std::uint32_t barrier, int head,
                                             int row, int batch) {
#pragma unroll
  for (int block = 0; block < kBlocks<kWidth>; ++block) {
    copy_in(to + block * kRows * kBlockRowBytes, map, barrier, block * kBlockColumns, head, row, batch);
  }
}

// Registers move between warpgroups.

template <int kCount>
__device__ __forceinline__ void keep_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" : : "n"(kCount));
}
template <int kCount>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" : : "n"(kCount));
}

/// Rounds a warpgroup's 64 rows into a tile of kRows from its row `first`; the warp writes its own 16.
template <int kRows, int kCount>
__device__ __forceinline__ void store_fragment(std::uint32_t tile, int first, const float (&x)[kCount]) {
  const int lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes % 4;
  const int row = first + warp * 16 + lane / 4;
#pragma unroll
  for (int n = 0; n < kCount / 4; ++n) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const std::uint32_t to = tile + chunk_offset<kRows>(row + 8 * r, 8 * n) + lane % 4 * 4;
      asm volatile("st.shared.b32 [%0], %1;"
                   :
                   : "r"(to), "r"(pack_pair(x[4 * n + 2 * r], x[4 * n + 2 * r + 1]))
                   : "memory");
    }
  }
}

// Rings of stages.

/// A stage of a ring, and the parity of the round. It is free again when each thread that read it has arrived at its
/// barrier: one lane for its warp, after __syncwarp, is no faster, and racecheck takes it for a hazard.
template <int kStages>
struct Ring {
  int stage = 0;
  int parity = 0;
  __device__ void next() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

/// Hardware barriers of single warpgroups: this + warpgroup.
inline constexpr int kStoreBarrier = 1;

/// A warpgroup's rows go out through its rows of a tile that none but the warpgroup reads: starts the copy, of which
/// thread 0 of the warpgroup knows the end.
template <int kRows, int kWidth>
__device__ __forceinline__ void store_group(std::uint32_t tile, const CUtensorMap* map, int group, int head, int row,
                                            int batch, const float (&x)[kWidth / 2]) {
  named_sync<kGroupThreads>(kStoreBarrier + group);  // all four warps have read
  store_fragment<kRows>(tile, group * 64, x);
  fence_async_proxy();
  named_sync<kGroupThreads>(kStoreBarrier + group);
  if (threadIdx.x % kGroupThreads != 0) return;
  for (int block = 0; block < kBlocks<kWidth>; ++block) {
    copy_out(map, tile + (block * kRows + group * 64) * kBlockRowBytes, block * kBlockColumns, head, row, batch);
  }
  copy_out_commit();
}

// Blocks.

/// A producing warpgroup, and kGroups consuming ones of 64 rows each. Registers: 128 threads share what 65536 / block
/// threads leave each, the producer gives its own away.
template <int kGroups>
struct Groups {
  static constexpr int kRows = 64 * kGroups;
  static constexpr int kThreads = kGroupThreads * (kGroups + 1);
  static constexpr int kConsumerRegisters = kGroups == 2 ? 240 : 160;
  static constexpr int kProducerRegisters = kGroups == 2 ? 24 : 32;
};

/// The thread's warpgroup, known to be the same in a warp; 0 produces.
__device__ __forceinline__ int warpgroup_index() {
  return __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kGroupThreads, 0);
}

/// Swizzled tiles begin on multiples of 1024 bytes; the launch asks for as many bytes more.
inline constexpr int kSharedAlignment = 1024;
__device__ __forceinline__ std::uint32_t align_shared(const void* memory) {
  return (shared_address(memory) + kSharedAlignment - 1) & ~(kSharedAlignment - 1U);
}

}  // namespace ferry::kernels::attention
