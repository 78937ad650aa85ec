// SPDX-License-Identifier: Apache-2.0
// Arithmetic of strided views.
#include "core/tensor_view.h"

#include <vector>

#include "catch.h"
#include "thrown.h"

using namespace ferry;

TEST_CASE("a new view is contiguous and row-major") {
  std::vector<float> data(24);
  const TensorView view(data.data(), DType::kF32, {2, 3, 4});
  CHECK(view.elems() == 24);
  CHECK(view.stride[0] == 12);
  CHECK(view.stride[1] == 4);
  CHECK(view.stride[2] == 1);
  CHECK(view.contiguous());
  CHECK(view.size_bytes() == 96);
  CHECK(view.span_bytes() == 96);
  CHECK(view.describe() == "f32 (2, 3, 4)");
  CHECK(bool(view));
}

TEST_CASE("a default view is absent") { CHECK(!TensorView()); }

TEST_CASE("columns are strided and start at their first element") {
  std::vector<Bf16> data(12);
  const TensorView view = TensorView(data.data(), DType::kBf16, {3, 4}).columns(1, 2);
  CHECK(view.as<Bf16>() == data.data() + 1);
  CHECK(view.elems() == 6);
  CHECK(!view.contiguous());
  CHECK(view.span_bytes() == (2 * 4 + 2) * sizeof(Bf16));
}

TEST_CASE("rows of a strided view keep its stride") {
  std::vector<float> data(12);
  const TensorView view = TensorView(data.data(), DType::kF32, {3, 4}).columns(2, 2).rows(1, 2);
  CHECK(view.as<float>() == data.data() + 6);
  CHECK(view.shape[0] == 2);
  CHECK(view.stride[0] == 4);
}

TEST_CASE("a single row of a strided view is contiguous") {
  std::vector<float> data(12);
  CHECK(TensorView(data.data(), DType::kF32, {3, 4}).columns(1, 2).rows(2, 1).contiguous());
}

TEST_CASE("an empty view has no bytes") {
  std::vector<float> data(4);
  const TensorView view = TensorView(data.data(), DType::kF32, {1, 4}).rows(1, 0);
  CHECK(view.elems() == 0);
  CHECK(view.span_bytes() == 0);
}

TEST_CASE("byte counts beyond 2^31 do not overflow") {
  const TensorView view(nullptr, DType::kF32, {1 << 17, 1 << 16});
  CHECK(view.size_bytes() == std::size_t{1} << 35);
  CHECK(view.span_bytes() == std::size_t{1} << 35);
}

TEST_CASE("reshape keeps the elements and asserts their number") {
  std::vector<float> data(12);
  const TensorView view(data.data(), DType::kF32, {3, 4});
  CHECK(view.reshape({2, 6}).stride[0] == 6);
  CHECK(thrown([&] { view.reshape({5, 2}); }) == "assertion");
  CHECK(thrown([&] { view.columns(0, 2).reshape({6}); }) == "assertion");
}

TEST_CASE("views assert ranges, ranks and element types") {
  std::vector<float> data(12);
  const TensorView view(data.data(), DType::kF32, {3, 4});
  CHECK(thrown([&] { view.rows(2, 2); }) == "assertion");
  CHECK(thrown([&] { view.rows(-1, 1); }) == "assertion");
  CHECK(thrown([&] { view.columns(3, 2); }) == "assertion");
  CHECK(thrown([&] { view.as<Bf16>(); }) == "assertion");
  CHECK(thrown([&] { TensorView(data.data(), DType::kF32, {1, 1, 1, 1, 1}); }) == "assertion");
}
