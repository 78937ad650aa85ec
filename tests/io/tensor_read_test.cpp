// SPDX-License-Identifier: Apache-2.0
#include "io/tensor_read.h"

#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "io/file_test_helpers.h"

namespace ferry {
namespace {

using namespace test;

// An entry over bytes that start at an odd address, as a file may have them.
struct StoredTensor {
  template <class T>
  StoredTensor(const char* dtype, const std::vector<T>& values)
      : storage(bytes_of(values).insert(0, 1, 'x')), shape{static_cast<std::int64_t>(values.size())} {
    entry = {"t", dtype, shape, std::as_bytes(std::span(storage)).subspan(1)};
  }
  StoredTensor(const StoredTensor&) = delete;

  std::string storage;
  std::vector<std::int64_t> shape;
  SafetensorsEntry entry;
};

template <class T>
std::vector<T> read_all(const StoredTensor& stored) {
  std::vector<T> values(static_cast<std::size_t>(stored.shape[0]));
  read_tensor("file", stored.entry, {stored.shape, DTypeOf<T>::kValue, values.data(), 0, stored.shape[0]});
  return values;
}

std::vector<std::uint16_t> all_halves() {
  std::vector<std::uint16_t> bits(65536);
  std::iota(bits.begin(), bits.end(), std::uint16_t{0});
  return bits;
}

// binary16 by its definition.
float half_value(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const int fraction = bits & 1023;
  const float sign = bits >> 15 ? -1.0F : 1.0F;
  if (exponent == 31) return fraction ? std::numeric_limits<float>::quiet_NaN() : sign * INFINITY;
  return exponent == 0 ? sign * std::ldexp(static_cast<float>(fraction), -24)
                       : sign * std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
}

TEST_CASE("equal dtypes are copied bit for bit, NaN payloads included") {
  const StoredTensor bf16("BF16", all_halves());
  const auto read = read_all<Bf16>(bf16);
  CHECK(bytes_of(read) == bf16.storage.substr(1));
  const StoredTensor f32("F32", std::vector<std::uint32_t>{0x7f800001, 0xffc12345, 0x80000000, 1});
  CHECK(bytes_of(read_all<float>(f32)) == f32.storage.substr(1));
  const StoredTensor i16("I16", std::vector<std::int16_t>{-1, 2});
  CHECK(read_all<std::int16_t>(i16) == std::vector<std::int16_t>{-1, 2});
}

TEST_CASE("every F16 value reads into f32 exactly and into bf16 rounded") {
  const StoredTensor stored("F16", all_halves());
  const auto wide = read_all<float>(stored);
  const auto narrow = read_all<Bf16>(stored);
  int n_wrong = 0;
  for (std::size_t i = 0; i < wide.size(); ++i) {
    const float expected = half_value(static_cast<std::uint16_t>(i));
    const bool same = std::isnan(expected)
                          ? std::isnan(wide[i]) && std::isnan(to_f32(narrow[i]))
                          : std::bit_cast<std::uint32_t>(wide[i]) == std::bit_cast<std::uint32_t>(expected) &&
                                narrow[i].bits == to_bf16(expected).bits;
    n_wrong += same ? 0 : 1;
  }
  CHECK(n_wrong == 0);
}

TEST_CASE("BF16 widens exactly and F32 rounds to nearest even") {
  const StoredTensor bf16("BF16", std::vector<std::uint16_t>{0x3f80, 0xc000, 0x0001});
  CHECK(read_all<float>(bf16) == std::vector<float>{1, -2, 0x1p-133F});
  const StoredTensor f32("F32", std::vector<float>{1.0F + 0x1p-8F, 1.0F + 0x3p-8F});  // both half way
  const auto read = read_all<Bf16>(f32);
  CHECK(read[0].bits == 0x3f80);
  CHECK(read[1].bits == 0x3f82);
}

TEST_CASE("a piece reads its elements alone") {
  const StoredTensor stored("BF16", std::vector<std::uint16_t>{0x3f80, 0x4000, 0x4040, 0x4080});
  std::vector<float> values(4, 9);
  read_tensor("file", stored.entry, {stored.shape, DType::kF32, values.data() + 1, 2, 2});
  CHECK(values == std::vector<float>{9, 3, 4, 9});
  read_tensor("file", stored.entry, {stored.shape, DType::kF32, nullptr, 4, 0});
}

TEST_CASE("another shape than expected is an error with both") {
  const StoredTensor stored("F32", std::vector<float>{1, 2});
  const std::vector<std::int64_t> shape{2, 1};
  float value = 0;
  check_error(ErrorKind::kShape, {"file: tensor 't' has shape (2), expected (2, 1)"}, [&] {
    read_tensor("file", stored.entry, {shape, DType::kF32, &value, 0, 1});
  });
}

TEST_CASE("a range outside of the tensor is an error") {
  const StoredTensor stored("F32", std::vector<float>{1, 2});
  float value = 0;
  for (const auto& [first, count] :
       std::vector<std::pair<std::int64_t, std::int64_t>>{{1, 2}, {-1, 1}, {0, -1}, {INT64_MAX, 1}, {1, INT64_MAX}}) {
    check_error(ErrorKind::kShape, {"file: tensor 't' has 2 elements, asked for"}, [&, first = first, count = count] {
      read_tensor("file", stored.entry, {stored.shape, DType::kF32, &value, first, count});
    });
  }
}

TEST_CASE("a dtype without conversion is an error with both") {
  const StoredTensor stored("I64", std::vector<std::int64_t>{1});
  float value = 0;
  check_error(ErrorKind::kDType, {"file: tensor 't' is I64, which cannot be read as f32"}, [&] {
    read_tensor("file", stored.entry, {stored.shape, DType::kF32, &value, 0, 1});
  });
}

}  // namespace
}  // namespace ferry
