// SPDX-License-Identifier: Apache-2.0
// Element types of tensors, and bfloat16 with rounding to nearest even.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ferry {

enum class DType : std::uint8_t { kF32, kBf16, kI32, kI16 };

constexpr std::size_t size_of(DType dtype) { return dtype == DType::kBf16 || dtype == DType::kI16 ? 2 : 4; }

/// "f32", "bf16", "i32", "i16"
const char* to_string(DType dtype);

/// The inverse of to_string for the floating types. Throws Error{kConfig}.
DType parse_dtype(std::string_view text);

/// The upper half of an IEEE binary32.
struct Bf16 {
  std::uint16_t bits = 0;
};

inline float to_f32(float value) { return value; }

inline float to_f32(Bf16 value) { return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16); }

/// Rounds to nearest even; NaN stays NaN, a value beyond bf16's range becomes infinite.
inline Bf16 to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return {static_cast<std::uint16_t>((bits >> 16) | 0x40U)};
  return {static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16)};
}

template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType kValue = DType::kF32;
};
template <>
struct DTypeOf<Bf16> {
  static constexpr DType kValue = DType::kBf16;
};
template <>
struct DTypeOf<std::int32_t> {
  static constexpr DType kValue = DType::kI32;
};
template <>
struct DTypeOf<std::int16_t> {
  static constexpr DType kValue = DType::kI16;
};

}  // namespace ferry
