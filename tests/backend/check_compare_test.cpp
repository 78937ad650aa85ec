// SPDX-License-Identifier: Apache-2.0
// Tolerances between backends, and the comparison of tensors.
#include "backend/check_compare.h"

#include <limits>
#include <vector>

#include "catch.h"

using namespace ferry;

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::optional<CheckDifference> compare(std::vector<float> got, std::vector<float> want, CheckTolerance tolerance) {
  const auto n = static_cast<std::int64_t>(got.size());
  return first_difference(TensorView(got.data(), DType::kF32, {n}), TensorView(want.data(), DType::kF32, {n}),
                          tolerance);
}

Matmul matmul(std::int64_t depth, DType dtype) {
  Matmul op;
  op.a = TensorView(nullptr, dtype, {3, depth});
  op.b = TensorView(nullptr, dtype, {depth, 5});
  op.d = TensorView(nullptr, dtype, {3, 5});
  return op;
}

}  // namespace

TEST_CASE("the first element beyond the tolerance is found, the others are counted") {
  const auto difference = compare({1, 2.5F, 3, 5}, {1, 2, 3, 4}, {0.125, 0.05});
  REQUIRE(difference.has_value());
  CHECK(difference->index_text() == "(1)");
  CHECK(difference->got == 2.5);
  CHECK(difference->want == 2);
  CHECK(difference->largest == 4);
  CHECK(difference->allowed == 0.125 * 2 + 0.05 * 4);
  CHECK(difference->n_differ == 2);
}

TEST_CASE("a tolerance is the sum of a part of the element and a part of the largest one") {
  CHECK(!compare({1.25F, 8}, {1, 8}, {0.25, 0}).has_value());
  CHECK(!compare({1.25F, 8}, {1, 8}, {0, 1.0 / 32}).has_value());
  CHECK(!compare({1.25F, 8}, {1, 8}, {0.125, 1.0 / 64}).has_value());
  CHECK(compare({1.25F, 8}, {1, 8}, {0.125, 1.0 / 128}).has_value());
}

TEST_CASE("without a tolerance bits are compared") {
  CHECK(!compare({1, 0}, {1, 0}, {}).has_value());
  CHECK(compare({1, 0}, {1, -0.0F}, {}).has_value());
  CHECK(compare({1, 1 + 0x1p-23F}, {1, 1}, {}).has_value());
}

TEST_CASE("NaN agrees with NaN alone, whatever the tolerance") {
  for (const CheckTolerance tolerance : {CheckTolerance{}, CheckTolerance{1, 1}}) {
    CHECK(!compare({kNan, 1}, {-kNan, 1}, tolerance).has_value());
    CHECK(compare({kNan, 1}, {1, 1}, tolerance).has_value());
    CHECK(compare({1, 1}, {kNan, 1}, tolerance).has_value());
  }
}

TEST_CASE("infinity agrees with itself alone and does not widen the tolerance of others") {
  const CheckTolerance tolerance{0.1, 0.1};
  CHECK(!compare({kInfinity}, {kInfinity}, tolerance).has_value());
  CHECK(compare({-kInfinity}, {kInfinity}, tolerance).has_value());
  CHECK(compare({1}, {kInfinity}, tolerance).has_value());
  CHECK(compare({kInfinity, 1}, {1, 1}, tolerance).has_value());
  CHECK(compare({kInfinity, 2}, {kInfinity, 1}, tolerance)->index_text() == "(1)");
}

TEST_CASE("strided views are compared by element, what lies between is not read") {
  std::vector<float> got(12, 1), want(12, 1);
  const auto columns = [](std::vector<float>& data) {
    return TensorView(data.data(), DType::kF32, {3, 4}).columns(1, 2);
  };
  got[0] = got[7] = kNan;
  CHECK(!first_difference(columns(got), columns(want), {}).has_value());
  got[10] = 7;
  CHECK(first_difference(columns(got), columns(want), {})->index_text() == "(2, 1)");
}

TEST_CASE("integers and bf16 are compared by value") {
  std::vector<std::int16_t> low{1, -3}, other_low{1, -4};
  CHECK(first_difference({low.data(), DType::kI16, {2}}, {other_low.data(), DType::kI16, {2}}, {})->want == -4);
  std::vector<Bf16> got{to_bf16(1), to_bf16(2)}, want{to_bf16(1), to_bf16(3)};
  CHECK(first_difference({got.data(), DType::kBf16, {2}}, {want.data(), DType::kBf16, {2}}, {})->got == 2);
}

TEST_CASE("ops without room for another order must give the same bits") {
  for (const Op& op : {Op(EmbeddingForward{}), Op(EmbeddingBackward{}), Op(Cast{}), Op(Fill{}), Op(Adamw{})}) {
    for (const DType dtype : {DType::kF32, DType::kBf16, DType::kI16}) {
      CHECK(check_tolerance(op, dtype).relative == 0);
      CHECK(check_tolerance(op, dtype).of_largest == 0);
    }
  }
}

TEST_CASE("bf16 may be one step off, f32 hardly, and longer sums more") {
  CHECK(check_tolerance(matmul(64, DType::kBf16), DType::kBf16).relative == 0x1p-7);
  CHECK(check_tolerance(matmul(64, DType::kF32), DType::kF32).relative < 1e-5);
  CHECK(check_tolerance(matmul(6400, DType::kF32), DType::kF32).of_largest ==
        Approx(10 * check_tolerance(matmul(64, DType::kF32), DType::kF32).of_largest));
  CHECK(check_tolerance(matmul(6400, DType::kF32), DType::kF32).of_largest < 1e-4);
}
