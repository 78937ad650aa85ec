// SPDX-License-Identifier: Apache-2.0
// Which instruction set the CPU code paths use: detected once, overridden by FERRY_SIMD.
#pragma once

#include <string_view>

namespace ferry {

/// kScalar: the x86-64 baseline. kAvx2: AVX2 and FMA. kAvx512: AVX-512 F, BW, DQ and VL. Higher levels contain the
/// lower.
enum class SimdLevel { kScalar, kAvx2, kAvx512 };

/// "scalar", "avx2", "avx512"
const char* to_string(SimdLevel level);

/// The highest level that this CPU and operating system support.
SimdLevel supported_simd_level();

/// The level in use: FERRY_SIMD where it is set, else the highest supported; read once.
/// Throws Error{kConfig} when FERRY_SIMD names an unknown level or one that this CPU lacks.
SimdLevel simd_level();

}  // namespace ferry
