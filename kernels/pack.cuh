// SPDX-License-Identifier: Apache-2.0
// Elements as they lie in memory, in words of 16 bytes; their f32 values, and the one rounding back.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <type_traits>

namespace ferry::kernels {

__device__ __forceinline__ float to_float(float value) { return value; }
__device__ __forceinline__ float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }

/// Two values rounded to bf16, nearest even, `low` in the lower half. NaN gets the bits of to_bf16 in core/dtype.h,
/// which the conversion instruction does not give.
__device__ __forceinline__ std::uint32_t round_pair(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  std::uint32_t low_bits = __bfloat16_as_ushort(pair.x);
  std::uint32_t high_bits = __bfloat16_as_ushort(pair.y);
  if (isnan(low)) low_bits = (__float_as_uint(low) >> 16) | 0x40U;
  if (isnan(high)) high_bits = (__float_as_uint(high) >> 16) | 0x40U;
  return low_bits | (high_bits << 16);
}

template <class T>
__device__ __forceinline__ T round_to(float value);
template <>
__device__ __forceinline__ float round_to<float>(float value) {
  return value;
}
template <>
__device__ __forceinline__ __nv_bfloat16 round_to<__nv_bfloat16>(float value) {
  return __ushort_as_bfloat16(static_cast<unsigned short>(round_pair(value, 0.0F)));
}

/// kCount neighbours, unconverted: what is in flight between a load and its use should cost few registers.
template <class T, int kCount = 16 / static_cast<int>(sizeof(T))>
struct Pack {
  static constexpr int kElems = kCount;
  static constexpr int kWords = kCount * static_cast<int>(sizeof(T)) / 4;
  static_assert(kWords % 4 == 0);

  std::uint32_t words[kWords];
};

/// Elements of a pack that belong to a row of which `left` are left: all, some or none; never some where rows are
/// known to hold whole packs.
template <int kElems, bool kWhole = false, class Int>
__device__ __forceinline__ int count_of(Int left) {
  if constexpr (kWhole) return left > 0 ? kElems : 0;
  return left >= kElems ? kElems : (left > 0 ? static_cast<int>(left) : 0);
}

/// The pack at `data`, of which `count` elements are read; the others become 0.
template <bool kVector, class T, int kCount>
__device__ __forceinline__ void load(Pack<T, kCount>& pack, const T* data, int count) {
  using Packed = Pack<T, kCount>;
  if (kVector && count == kCount) {
#pragma unroll
    for (int q = 0; q < Packed::kWords / 4; ++q) {
      const uint4 quad = reinterpret_cast<const uint4*>(data)[q];
      pack.words[4 * q] = quad.x;
      pack.words[4 * q + 1] = quad.y;
      pack.words[4 * q + 2] = quad.z;
      pack.words[4 * q + 3] = quad.w;
    }
    return;
  }
  using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint16_t>;
  std::uint32_t bits[kCount];  // all loads before the first use
#pragma unroll
  for (int i = 0; i < kCount; ++i) bits[i] = i < count ? reinterpret_cast<const Bits*>(data)[i] : Bits{0};
#pragma unroll
  for (int w = 0; w < Packed::kWords; ++w) {
    if constexpr (sizeof(T) == 4) {
      pack.words[w] = bits[w];
    } else {
      pack.words[w] = bits[2 * w] | (bits[2 * w + 1] << 16);
    }
  }
}

/// One store of 16 bytes to global memory. nvcc 13 compiles some plain assignments to four narrow ones.
__device__ __forceinline__ void store_quad(uint4* to, uint4 quad) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
               :
               : "l"(__cvta_generic_to_global(to)), "r"(quad.x), "r"(quad.y), "r"(quad.z), "r"(quad.w)
               : "memory");
}

/// Writes the first `count` elements.
template <bool kVector, class T, int kCount>
__device__ __forceinline__ void store(T* data, int count, const Pack<T, kCount>& pack) {
  using Packed = Pack<T, kCount>;
  if (kVector && count == kCount) {
#pragma unroll
    for (int q = 0; q < Packed::kWords / 4; ++q) {
      const uint4 quad =
          make_uint4(pack.words[4 * q], pack.words[4 * q + 1], pack.words[4 * q + 2], pack.words[4 * q + 3]);
      store_quad(reinterpret_cast<uint4*>(data) + q, quad);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (i >= count) continue;
    if constexpr (sizeof(T) == 4) {
      reinterpret_cast<std::uint32_t*>(data)[i] = pack.words[i];
    } else {
      const std::uint32_t bits = pack.words[i / 2] >> (i % 2 * 16);
      reinterpret_cast<std::uint16_t*>(data)[i] = static_cast<std::uint16_t>(bits & 0xffffU);
    }
  }
}

template <int kCount>
__device__ __forceinline__ void unpack(const Pack<float, kCount>& pack, float (&values)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) values[i] = __uint_as_float(pack.words[i]);
}
template <int kCount>
__device__ __forceinline__ void unpack(const Pack<__nv_bfloat16, kCount>& pack, float (&values)[kCount]) {
#pragma unroll
  for (int w = 0; w < kCount / 2; ++w) {
    values[2 * w] = __uint_as_float(pack.words[w] << 16);
    values[2 * w + 1] = __uint_as_float(pack.words[w] & 0xffff0000U);
  }
}

/// The inverse of unpack: rounds to the element type.
template <int kCount>
__device__ __forceinline__ void round_into(Pack<float, kCount>& pack, const float (&values)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) pack.words[i] = __float_as_uint(values[i]);
}
template <int kCount>
__device__ __forceinline__ void round_into(Pack<__nv_bfloat16, kCount>& pack, const float (&values)[kCount]) {
#pragma unroll
  for (int w = 0; w < kCount / 2; ++w) pack.words[w] = round_pair(values[2 * w], values[2 * w + 1]);
}

/// Loads and converts, stores and rounds, where a pack has no time to wait in between.
template <bool kVector, class T, int kCount>
__device__ __forceinline__ void load_values(float (&values)[kCount], const T* data, int count) {
  Pack<T, kCount> pack;
  load<kVector>(pack, data, count);
  unpack(pack, values);
}
template <bool kVector, class T, int kCount>
__device__ __forceinline__ void store_values(T* data, int count, const float (&values)[kCount]) {
  Pack<T, kCount> pack;
  round_into(pack, values);
  store<kVector>(data, count, pack);
}

/// Where one pack of a matrix lies. Rows are cut into packs from their first element, so which elements share a pack
/// does not depend on alignment.
struct PackPlace {
  std::int64_t row;
  std::int64_t column;  // of its first element
  int count;            // its elements; 0 behind the last row
};

/// Place of pack `index` when the packs of all rows are counted through.
template <int kElems, bool kWhole>
__device__ __forceinline__ PackPlace place_of(std::int64_t index, std::int64_t n_rows, std::int64_t width) {
  const std::int64_t packs_per_row = (width + kElems - 1) / kElems;
  const std::int64_t row = index / packs_per_row;  // 32-bit where both fit
  const std::int64_t column = (index - row * packs_per_row) * kElems;
  return {row, column, row < n_rows ? count_of<kElems, kWhole>(width - column) : 0};
}

}  // namespace ferry::kernels
