// SPDX-License-Identifier: Apache-2.0
// Detection and forcing of the SIMD level.
#include "core/simd.h"

#include "catch.h"
#include "thrown.h"

using namespace ferry;

TEST_CASE("simd levels have names and an order") {
  CHECK(std::string(to_string(SimdLevel::kScalar)) == "scalar");
  CHECK(std::string(to_string(SimdLevel::kAvx2)) == "avx2");
  CHECK(std::string(to_string(SimdLevel::kAvx512)) == "avx512");
  CHECK(SimdLevel::kScalar < SimdLevel::kAvx2);
  CHECK(SimdLevel::kAvx2 < SimdLevel::kAvx512);
}

TEST_CASE("the level in use never exceeds what the CPU supports") { CHECK(simd_level() <= supported_simd_level()); }

// Hidden: each runs in a process of its own with FERRY_SIMD set (tests/core/CMakeLists.txt).
TEST_CASE("FERRY_SIMD forces a level", "[.simd_forced]") { CHECK(simd_level() == SimdLevel::kScalar); }

TEST_CASE("FERRY_SIMD with an unknown level is refused", "[.simd_unknown]") {
  CHECK(thrown([] { simd_level(); }) == "config: FERRY_SIMD is 'neon': expected scalar, avx2 or avx512");
}
