// SPDX-License-Identifier: Apache-2.0
// Tensor cores by wgmma, for Hopper: a warpgroup multiplies 64 rows by a tile in shared memory.
// Source: PTX ISA 8.7, section 9.7.15 (wgmma).
#pragma once

#include <cstdint>

#include "kernels/attention_tiles.cuh"

namespace ferry::kernels::attention {

// wgmma: d (64 x n, f32) (+)= a (64 x 16) b (16 x n), asynchronous.

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" : : : "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" : : : "memory"); }
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" : : "n"(kPending) : "memory");
}
/// Keeps the compiler from moving uses of registers across this point.
template <int kCount>
__device__ __forceinline__ void pin(float (&x)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(x[i]) : : "memory");
}
template <int kCount>
__device__ __forceinline__ void pin(std::uint32_t (&x)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(x[i]) : : "memory");
}

/// Matrix descriptor of a swizzled tile. Operands whose reduction runs along columns: `stride` is the distance of
/// eight rows. Operands whose reduction runs along rows: `lead` is the distance of column blocks.
__device__ __forceinline__ std::uint64_t descriptor(std::uint32_t address, int lead_bytes, int stride_bytes) {
  constexpr std::uint64_t kSwizzle128 = 1ULL << 62;
  return kSwizzle128 | static_cast<std::uint64_t>((address & 0x3ffffU) >> 4) |
         static_cast<std::uint64_t>(lead_bytes >> 4) << 16 | static_cast<std::uint64_t>(stride_bytes >> 4) << 32;
}

// Operand lists: eight registers of d from place i on.
#define FERRY_D8(i)                                                                                           \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
      "+f"(d[i + 7])
#define FERRY_D32(i) FERRY_D8(i), FERRY_D8(i + 8), FERRY_D8(i + 16), FERRY_D8(i + 24)
#define FERRY_NAMES_0_32                                                                                               \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30," \
  "%31"
#define FERRY_NAMES_32_40 "%32,%33,%34,%35,%36,%37,%38,%39"
#define FERRY_NAMES_32_48 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define FERRY_NAMES_32_64                                                                                             \
  "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%" \
  "60,%61,%62,%63"

// kTransB: the reduction runs along the rows of b. accumulate: 0 starts from 0.
template <int kTransB>
__device__ __forceinline__ void wgmma(float (&d)[32], std::uint64_t a, std::uint64_t b, int accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" FERRY_NAMES_0_32 "}, %32, %33, p, 1, 1, 0, %35;\n}"
      : FERRY_D32(0)
      : "l"(a), "l"(b), "r"(accumulate), "n"(kTransB));
}
template <int kTransB>
__device__ __forceinline__ void wgmma(float (&d)[32], const std::uint32_t* a, std::uint64_t b, int accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" FERRY_NAMES_0_32
      "}, {%32,%33,%34,%35}, %36, p, 1, 1, %38;\n}"
      : FERRY_D32(0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"(kTransB));
}
template <int kTransB>
__device__ __forceinline__ void wgmma(float (&d)[40], std::uint64_t a, std::uint64_t b, int accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %42, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n80k16.f32.bf16.bf16 {" FERRY_NAMES_0_32 "," FERRY_NAMES_32_40
      "}, %40, %41, p, 1, 1, 0, %43;\n}"
      : FERRY_D32(0), FERRY_D8(32)
      : "l"(a), "l"(b), "r"(accumulate), "n"(kTransB));
}
template <int kTransB>
__device__ __forceinline__ void wgmma(float (&d)[40], const std::uint32_t* a, std::uint64_t b, int accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %45, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n80k16.f32.bf16.bf16 {" FERRY_NAMES_0_32 "," FERRY_NAMES_32_40
      "}, {%40,%41,%42,%43}, %44, p, 1, 1, %46;\n}"
      : FERRY_D32(0), FERRY_D8(32)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"(kTransB));
}
template <int kTransB>
__device__ __forceinline__ void wgmma(float (&d)[48], std::uint64_t a, std::uint64_t b, int accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %50, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 {" FERRY_NAMES_0_32 "," FERRY_NAMES_32_48
      "}, %48, %49, p, 1, 1, 0, %51;\n}"
      : FERRY_D32(0), FERRY_D8(32), FERRY_D8(40)
      : "l"(a), "l"(b), "r"(accumulate), "n"(kTransB));
}
template <int kTransB>
__device__ __forceinline__ void wgmma(float (&d)[48], const std::uint32_t* a, std::uint64_t b, int accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %53, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 {" FERRY_NAMES_0_32 "," FERRY_NAMES_32_48
      "}, {%48,%49,%50,%51}, %52, p, 1, 1, %54;\n}"
      : FERRY_D32(0), FERRY_D8(32), FERRY_D8(40)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"(kTransB));
}
template <int kTransB>
__device__ __forceinline__ void wgmma(float (&d)[64], std::uint64_t a, std::uint64_t b, int accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" FERRY_NAMES_0_32 "," FERRY_NAMES_32_64
      "}, %64, %65, p, 1, 1, 0, %67;\n}"
      : FERRY_D32(0), FERRY_D32(32)
      : "l"(a), "l"(b), "r"(accumulate), "n"(kTransB));
}
template <int kTransB>
__device__ __forceinline__ void wgmma(float (&d)[64], const std::uint32_t* a, std::uint64_t b, int accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" FERRY_NAMES_0_32 "," FERRY_NAMES_32_64
      "}, {%64,%65,%66,%67}, %68, p, 1, 1, %70;\n}"
      : FERRY_D32(0), FERRY_D32(32)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"(kTransB));
}

#undef FERRY_D8
#undef FERRY_D32
#undef FERRY_NAMES_0_32
#undef FERRY_NAMES_32_40
#undef FERRY_NAMES_32_48
#undef FERRY_NAMES_32_64

inline constexpr int kEightRowBytes = 8 * kBlockRowBytes;

/// s = a b^T over kWidth columns; a: 64 rows from address `a` of a tile of kRowsA, b: all rows of a tile of kRowsB.
template <int kWidth, int kRowsA, int kRowsB, int kCount>
__device__ __forceinline__ void product_rows(float (&s)[kCount], std::uint32_t a, std::uint32_t b) {
  static_assert(kCount == kRowsB / 2);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < kWidth / 16; ++k) {
    const int block = k / 4, inside = k % 4 * 32;
    wgmma<0>(s, descriptor(a + block * kRowsA * kBlockRowBytes + inside, 16, kEightRowBytes),
             descriptor(b + block * kRowsB * kBlockRowBytes + inside, 16, kEightRowBytes), k > 0);
  }
}

/// The warp's 16 rows of a warpgroup's 64, from address `tile` of a tile of kRows, as left operands: 16 columns a step.
template <int kRows, int kCount>
__device__ __forceinline__ void load_rows(std::uint32_t (&out)[kCount], std::uint32_t tile) {
  const int lane = threadIdx.x % kLanes, row = threadIdx.x / kLanes % 4 * 16 + lane % 16;
#pragma unroll
  for (int k = 0; k < kCount / 4; ++k) {
    std::uint32_t step[4];
    load_matrices(step, tile + chunk_offset<kRows>(row, 16 * k + lane / 16 * 8));
#pragma unroll
    for (int i = 0; i < 4; ++i) out[4 * k + i] = step[i];
  }
}

/// s = a b^T; a: rows from load_rows, b: all rows of a tile of kRowsB.
template <int kRowsB, int kCount, int kCountA>
__device__ __forceinline__ void product_held_rows(float (&s)[kCount], const std::uint32_t (&a)[kCountA],
                                                  std::uint32_t b) {
  static_assert(kCount == kRowsB / 2);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < kCountA / 4; ++k) {
    wgmma<0>(s, a + 4 * k, descriptor(b + k / 4 * kRowsB * kBlockRowBytes + k % 4 * 32, 16, kEightRowBytes), k > 0);
  }
}

/// d += p b; p: 64 x kRows in registers, b: a tile of kRows rows.
template <int kRows, int kCountD, int kCountP>
__device__ __forceinline__ void product_columns(float (&d)[kCountD], const std::uint32_t (&p)[kCountP],
                                                std::uint32_t b) {
  static_assert(kCountP == kRows / 4);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < kRows / 16; ++k) {
    wgmma<1>(d, p + 4 * k, descriptor(b + k * 16 * kBlockRowBytes, kRows * kBlockRowBytes, kEightRowBytes), 1);
  }
}

}  // namespace ferry::kernels::attention
