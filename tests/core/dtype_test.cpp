// SPDX-License-Identifier: Apache-2.0
// Rounding to bfloat16, names and sizes of element types.
#include "core/dtype.h"

#include <limits>

#include "catch.h"
#include "thrown.h"

using namespace ferry;

namespace {

std::uint16_t rounded(std::uint32_t bits) { return to_bf16(std::bit_cast<float>(bits)).bits; }

}  // namespace

TEST_CASE("bf16 rounds to nearest, ties to even") {
  CHECK(rounded(0x3f800000) == 0x3f80);  // 1
  CHECK(rounded(0x3f807fff) == 0x3f80);  // just below the tie
  CHECK(rounded(0x3f808000) == 0x3f80);  // tie, even below
  CHECK(rounded(0x3f808001) == 0x3f81);  // just above
  CHECK(rounded(0x3f818000) == 0x3f82);  // tie, even above
  CHECK(rounded(0xbf818000) == 0xbf82);  // the sign plays no part
}

TEST_CASE("bf16 rounding carries into the exponent") {
  CHECK(rounded(0x3fffffff) == 0x4000);  // almost 2
}

TEST_CASE("bf16 keeps subnormals and signed zero") {
  CHECK(rounded(0x00000000) == 0x0000);
  CHECK(rounded(0x80000000) == 0x8000);
  CHECK(rounded(0x00010000) == 0x0001);  // the smallest bf16 subnormal
  CHECK(rounded(0x00008000) == 0x0000);  // half of it: tie to zero
  CHECK(rounded(0x00008001) == 0x0001);
  CHECK(rounded(0x00018000) == 0x0002);  // tie to even among subnormals
  CHECK(rounded(0x007fffff) == 0x0080);  // rounds up to the smallest normal
}

TEST_CASE("bf16 keeps infinity, and values beyond its range become infinite") {
  CHECK(rounded(0x7f800000) == 0x7f80);
  CHECK(rounded(0xff800000) == 0xff80);
  CHECK(rounded(0x7f7f7fff) == 0x7f7f);  // rounds to the largest finite bf16
  CHECK(rounded(0x7f7f8000) == 0x7f80);  // tie to even is infinity
  CHECK(rounded(std::bit_cast<std::uint32_t>(std::numeric_limits<float>::max())) == 0x7f80);
}

TEST_CASE("bf16 keeps NaN a NaN, also when its payload lies in the dropped bits") {
  for (const std::uint32_t bits : {0x7fc00000U, 0x7f800001U, 0xff800001U, 0x7fffffffU, 0xffffffffU}) {
    CHECK(std::isnan(to_f32(to_bf16(std::bit_cast<float>(bits)))));
  }
}

TEST_CASE("every bf16 survives the way through f32") {
  int n_changed = 0;
  for (std::uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const Bf16 value{static_cast<std::uint16_t>(bits)};
    if (std::isnan(to_f32(value))) continue;
    n_changed += to_bf16(to_f32(value)).bits != value.bits;
  }
  CHECK(n_changed == 0);
}

TEST_CASE("dtypes have names and sizes") {
  CHECK(std::string(to_string(DType::kF32)) == "f32");
  CHECK(std::string(to_string(DType::kI16)) == "i16");
  CHECK(size_of(DType::kF32) == 4);
  CHECK(size_of(DType::kBf16) == 2);
  CHECK(size_of(DType::kI32) == 4);
  CHECK(size_of(DType::kI16) == 2);
}

TEST_CASE("parse_dtype takes the floating types and refuses others by name") {
  CHECK(parse_dtype("f32") == DType::kF32);
  CHECK(parse_dtype("bf16") == DType::kBf16);
  CHECK(thrown([] { parse_dtype("fp8"); }) == "config: dtype is 'fp8': expected f32 or bf16");
}
