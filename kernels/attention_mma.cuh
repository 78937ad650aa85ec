// SPDX-License-Identifier: Apache-2.0
// Tensor cores by mma.sync, tiles by cp.async: what every device of compute capability 8.0 has.
// Source: PTX ISA 8.7, sections 9.7.9.25 (cp.async), 9.7.14.5 (mma, ldmatrix).
#pragma once

#include "kernels/attention_tiles.cuh"

namespace ferry::kernels::attention {

__device__ __forceinline__ void copy_async_commit() { asm volatile("cp.async.commit_group;" : : : "memory"); }
__device__ __forceinline__ void copy_async_wait() { asm volatile("cp.async.wait_group 0;" : : : "memory"); }

/// The block starts to copy rows first .. first + kRows - 1 of a head into a tile; rows from `limit` on become 0.
template <int kRows, int kWidth, int kThreads>
__device__ __forceinline__ void copy_tile_async(std::uint32_t tile, const HeadRows& x, int batch, int head, int first,
                                                int limit) {
  constexpr int kRowChunks = kWidth / 8;
  const __nv_bfloat16* const data = head_row<const __nv_bfloat16>(x, batch, 0, head);
#pragma unroll
  for (int i = threadIdx.x; i < kRows * kRowChunks; i += kThreads) {
    const int row = i / kRowChunks, column = i % kRowChunks * 8;
    const int n_bytes = first + row < limit ? 16 : 0;
    const __nv_bfloat16* const from = data + min(first + row, limit - 1) * x.row_stride + column;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(tile + chunk_offset<kRows>(row, column)), "l"(__cvta_generic_to_global(from)), "r"(n_bytes)
                 : "memory");
  }
}

/// load_matrices, each matrix transposed.
__device__ __forceinline__ void load_matrices_transposed(std::uint32_t (&out)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address)
               : "memory");
}

/// d (16 x 8) += a (16 x 16) b (16 x 8).
__device__ __forceinline__ void mma(float* d, const std::uint32_t* a, std::uint32_t b0, std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9},"
      " {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// s = a b^T over kWidth columns; a: the warp's 16 rows from row `first` of a tile of kRowsA, b: a tile of kRowsB rows.
template <int kWidth, int kRowsA, int kRowsB>
__device__ __forceinline__ void multiply_rows(float (&s)[kRowsB / 2], std::uint32_t a, int first, std::uint32_t b) {
  const int lane = threadIdx.x % kLanes;
#pragma unroll
  for (float& value : s) value = 0;
#pragma unroll
  for (int k = 0; k < kWidth; k += 16) {
    std::uint32_t left[4];
    load_matrices(left, a + chunk_offset<kRowsA>(first + lane % 16, k + lane / 16 * 8));
#pragma unroll
    for (int n = 0; n < kRowsB; n += 16) {
      std::uint32_t right[4];
      load_matrices(right, b + chunk_offset<kRowsB>(n + lane % 8 + lane / 16 * 8, k + lane / 8 % 2 * 8));
      mma(s + n / 2, left, right[0], right[1]);
      mma(s + n / 2 + 4, left, right[2], right[3]);
    }
  }
}

/// d += p b; p: 16 x kRows in registers, b: a tile of kRows rows.
template <int kRows, int kWidth>
__device__ __forceinline__ void multiply_columns(float (&d)[kWidth / 2], const std::uint32_t (&p)[kRows / 4],
                                                 std::uint32_t b) {
  const int lane = threadIdx.x % kLanes;
#pragma unroll
  for (int k = 0; k < kRows; k += 16) {
#pragma unroll
    for (int n = 0; n < kWidth; n += 16) {
      std::uint32_t right[4];
      load_matrices_transposed(right, b + chunk_offset<kRows>(k + lane % 16, n + lane / 16 * 8));
      mma(d + n / 2, p + k / 4, right[0], right[1]);
      mma(d + n / 2 + 4, p + k / 4, right[2], right[3]);
    }
  }
}

/// Writes the warp's 16 rows through its rows of a tile, which no other warp reads.
template <int kRows, int kWidth>
__device__ __forceinline__ void store_warp_rows(const HeadRows& x, int batch, int head, int first, int limit,
                                                std::uint32_t tile, int tile_row, const float (&values)[kWidth / 2]) {
  constexpr int kRowChunks = kWidth / 8;
  const int lane = threadIdx.x % kLanes;
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kWidth / 2; i += 2) {
    const int row = tile_row + lane / 4 + i % 4 / 2 * 8;
    asm volatile("st.shared.b32 [%0], %1;"
                 :
                 : "r"(tile + chunk_offset<kRows>(row, i / 4 * 8) + lane % 4 * 4),
                   "r"(pack_pair(values[i], values[i + 1]))
                 : "memory");
  }
  __syncwarp();
#pragma unroll
  for (int i = lane; i < 16 * kRowChunks; i += kLanes) {
    const int row = i / kRowChunks, column = i % kRowChunks * 8;
    uint4 quad;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(quad.x), "=r"(quad.y), "=r"(quad.z), "=r"(quad.w)
                 : "r"(tile + chunk_offset<kRows>(tile_row + row, column))
                 : "memory");
    if (first + row < limit) {
      *reinterpret_cast<uint4*>(head_row<__nv_bfloat16>(x, batch, first + row, head) + column) = quad;
    }
  }
}

}  // namespace ferry::kernels::attention
