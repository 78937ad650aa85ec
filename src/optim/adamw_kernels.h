// SPDX-License-Identifier: Apache-2.0
// The implementations behind adamw_update: one source file per instruction set, all with the same bits.
#pragma once

#include "optim/adamw.h"

namespace ferry::detail {

// Every implementation does the same IEEE operations in the same order, one rounding each:
//   g = gradient_scale * g;  p = p * decay;  m = fma(1 - beta1, g - m, m);  v = fma((1 - beta2) * g, g, beta2 * v);
//   p = fma(-step_size, m / fma(sqrt(v), inverse_sqrt_correction2, eps), p);
// A NaN is stored as 0x7fc00000 (0x7fc0 in bf16), since instruction sets disagree about its payload. PyTorch divides by
// sqrt_correction2: one division less is a third of the divider's work, which alone would bind a core.

/// What rounds one element: 16 uniform bits each.
struct Draws {
  std::uint32_t weight = 0;
  std::uint32_t m = 0;
  std::uint32_t v = 0;
};

/// The draws of an element, in 32-bit arithmetic:
///   x = element + key.first;  x ^= x >> 16;  x *= kNoise1;  x ^= (x >> 15) ^ key.second;  x *= kNoise2;  x ^= x >> 14;
///   m = x & 0xffff;  v = x >> 16;  weight = (m * (kNoise3 & 0xffff) + v * (kNoise3 >> 16)) & 0xffff.
/// Over all elements every pair (m, v) occurs once, and with it every pair (weight, m) and (weight, v), since both
/// multipliers are odd. key.second makes the sequences of two keys different ones, not parts of one sequence. The last
/// shift is 14: after 16 the lowest bit of `weight` would be that of the product, which neighbours share.
/// tests/optim/adamw_noise_test.cpp tests bits and correlations. Beyond 2^32 elements the draws of a parameter repeat.
/// Source: C. Wellons 2018, "Prospecting for hash functions", nullprogram.com/blog/2018/07/31: lowbias32, here with a
/// key between its rounds and another last shift.
Draws rounding_draws(const NoiseKey& key, std::uint32_t element);
inline constexpr std::uint32_t kNoise1 = 0x7feb352d;
inline constexpr std::uint32_t kNoise2 = 0x846ca68b;
inline constexpr std::uint32_t kNoise3 = 0xac4d1b51;

using AdamwKernel = void (*)(const AdamwRange& range, const AdamwScalars& scalars, const NoiseKey& key);

/// The implementation that adamw_update runs at `level`.
AdamwKernel adamw_kernel(SimdLevel level);

// `range` is checked.

/// The baseline, and the definition of the bits.
void adamw_scalar(const AdamwRange& range, const AdamwScalars& scalars, const NoiseKey& key);
/// Needs AVX2 and FMA.
void adamw_avx2(const AdamwRange& range, const AdamwScalars& scalars, const NoiseKey& key);
/// Needs AVX-512 F, BW, DQ and VL.
void adamw_avx512(const AdamwRange& range, const AdamwScalars& scalars, const NoiseKey& key);

}  // namespace ferry::detail
