// SPDX-License-Identifier: Apache-2.0
// Short vectors of f32: bf16 conversion, exp, sums and maxima whose order depends on the length alone.
//
// Kernels load a block of a row into an aligned f32 buffer, compute there, and store it rounded. Work on the buffer
// covers whole lanes (round_up(n)); what lies behind n is computed and dropped.
#pragma once

#include <Eigen/Core>
#include <cstdint>

#include "backend/cpu/kernels/kernels.h"

namespace ferry::cpu::FERRY_ISA {

using Bf16Bits = std::uint16_t;

inline constexpr std::int64_t kLanes = 16;
inline constexpr std::int64_t kBlock = 512;  // elements of a row at a time: a few such buffers fit the L1 cache
inline constexpr float kInfinity = __builtin_inff();

struct alignas(64) Block {
  float values[kBlock];
};

inline std::int64_t round_up(std::int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }
inline std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

/// Calls fn(float{}) or fn(Bf16Bits{}) for the element type.
template <class Fn>
inline void with_type(DType dtype, Fn&& fn) {
  if (dtype == DType::kF32) {
    fn(float{});
  } else {
    fn(Bf16Bits{});
  }
}

template <class T>
inline T* at(const TensorView& view, std::int64_t offset = 0) {
  return static_cast<T*>(view.data) + offset;
}

inline float to_float(float value) { return value; }
inline float to_float(Bf16Bits bits) { return __builtin_bit_cast(float, static_cast<std::uint32_t>(bits) << 16); }

/// Rounds to nearest even; NaN stays NaN.
template <class T>
inline T from_float(float value);
template <>
inline float from_float<float>(float value) {
  return value;
}
template <>
inline Bf16Bits from_float<Bf16Bits>(float value) {
  const auto bits = __builtin_bit_cast(std::uint32_t, value);
  const std::uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  const std::uint32_t nan = (bits >> 16) | 0x40U;
  return static_cast<Bf16Bits>((bits & 0x7fffffffU) > 0x7f800000U ? nan : rounded);
}

template <class T>
inline void load(float* __restrict out, const T* __restrict in, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = to_float(in[i]);
}
template <class T>
inline void store(T* __restrict out, const float* __restrict in, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = from_float<T>(in[i]);
}
/// Loads n elements and sets the rest of the last lanes to `fill`.
template <class T>
inline void load_padded(float* out, const T* in, std::int64_t n, float fill) {
  load(out, in, n);
  for (std::int64_t i = n; i < round_up(n); ++i) out[i] = fill;
}

using LaneArray = Eigen::Array<float, kLanes, 1>;
using ConstLanes = Eigen::Map<const LaneArray>;
using AlignedArray = Eigen::Map<Eigen::ArrayXf, Eigen::AlignedMax>;
using ConstAlignedArray = Eigen::Map<const Eigen::ArrayXf, Eigen::AlignedMax>;

/// out[i] = exp(in[i]). Both aligned, n a multiple of kLanes. Eigen clamps its argument; beyond it the limits are
/// exact.
inline void exp_lanes(float* __restrict out, const float* __restrict in, std::int64_t n) {
  constexpr float kLowest = -87.3F;
  constexpr float kHighest = 88.72F;
  AlignedArray(out, n) = ConstAlignedArray(in, n).exp();
  for (std::int64_t i = 0; i < n; ++i) {
    float value = in[i] < kLowest ? 0.0F : out[i];
    value = in[i] > kHighest ? kInfinity : value;
    out[i] = in[i] != in[i] ? in[i] : value;
  }
}

/// Sum of n elements, n a multiple of kLanes.
inline float sum_lanes(const float* in, std::int64_t n) {
  LaneArray total = LaneArray::Zero();
  for (std::int64_t i = 0; i < n; i += kLanes) total += ConstLanes(in + i);
  return total.sum();
}
inline float dot_lanes(const float* a, const float* b, std::int64_t n) {
  LaneArray total = LaneArray::Zero();
  for (std::int64_t i = 0; i < n; i += kLanes) total += ConstLanes(a + i) * ConstLanes(b + i);
  return total.sum();
}
/// Largest of n elements (a multiple of kLanes); NaN elements are passed over.
inline float max_lanes(const float* in, std::int64_t n) {
  float largest[kLanes];
  for (float& value : largest) value = -kInfinity;
  for (std::int64_t i = 0; i < n; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      largest[lane] = in[i + lane] > largest[lane] ? in[i + lane] : largest[lane];
    }
  }
  float result = largest[0];
  for (const float value : largest) result = value > result ? value : result;
  return result;
}

}  // namespace ferry::cpu::FERRY_ISA
