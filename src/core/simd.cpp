// SPDX-License-Identifier: Apache-2.0
// CPU detection through the compiler's own cpuid helpers, which also check that the OS saves the registers.
#include "core/simd.h"

#include <cstdlib>

#include "core/error.h"

namespace ferry {
namespace {

SimdLevel requested_level(const char* text) {
  for (const SimdLevel level : {SimdLevel::kScalar, SimdLevel::kAvx2, SimdLevel::kAvx512}) {
    if (std::string_view(text) != to_string(level)) continue;
    FERRY_CHECK(level <= supported_simd_level(), kConfig, "FERRY_SIMD is {}, but this CPU supports {} at most", text,
                to_string(supported_simd_level()));
    return level;
  }
  detail::throw_error(ErrorKind::kConfig, fmt::format("FERRY_SIMD is '{}': expected scalar, avx2 or avx512", text));
}

}  // namespace

const char* to_string(SimdLevel level) {
  switch (level) {
    case SimdLevel::kScalar: return "scalar";
    case SimdLevel::kAvx2: return "avx2";
    case SimdLevel::kAvx512: return "avx512";
  }
  return "unknown";
}

SimdLevel supported_simd_level() {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return SimdLevel::kScalar;
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return avx512 ? SimdLevel::kAvx512 : SimdLevel::kAvx2;
}

SimdLevel simd_level() {
  static const SimdLevel level = [] {
    const char* text = std::getenv("FERRY_SIMD");
    return text != nullptr && *text != '\0' ? requested_level(text) : supported_simd_level();
  }();
  return level;
}

}  // namespace ferry
