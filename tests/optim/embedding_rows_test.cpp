// SPDX-License-Identifier: Apache-2.0
// Rows of an embedding table: gather, order and rounding of the scatter-add, independence of threads and row ranges.
#include "optim/embedding_rows.h"

#include <algorithm>

#include "catch.h"
#include "core/thread_pool.h"
#include "test_util.h"

namespace ferry {
namespace {

using test::contains;
using test::error_of;
using test::noise;
using test::same_bits;

template <class T>
T rounded(float value) {
  if constexpr (std::is_same_v<T, float>) {
    return value;
  } else {
    return to_bf16(value);
  }
}

template <class T>
std::vector<T> noise_array(std::int64_t n, std::int64_t step) {
  std::vector<T> values;
  for (std::int64_t i = 0; i < n; ++i) values.push_back(rounded<T>(noise(i, step)));
  return values;
}

/// Few distinct ids, so that rows repeat; every fifth one is 3.
std::vector<std::int32_t> make_ids(std::int64_t n, std::int32_t vocab) {
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < n; ++i) {
    ids.push_back(i % 5 == 0 ? 3 : static_cast<std::int32_t>((i * 7919 + i * i) % vocab));
  }
  return ids;
}

std::vector<std::int32_t> sorted(const std::vector<std::int32_t>& ids) {
  std::vector<std::int32_t> order(ids.size());
  sort_positions(ids, order);
  return order;
}

/// The contract, written down plainly: one row after the other, positions in order.
template <class T>
void reference(const std::vector<std::int32_t>& ids, const std::vector<T>& d_y, std::int64_t width,
               std::vector<T>& d_table) {
  const auto n_rows = static_cast<std::int64_t>(d_table.size()) / width;
  for (std::int64_t row = 0; row < n_rows; ++row) {
    if (std::find(ids.begin(), ids.end(), row) == ids.end()) continue;
    for (std::int64_t c = 0; c < width; ++c) {
      float sum = 0;
      for (std::size_t i = 0; i < ids.size(); ++i) {
        if (ids[i] == row) sum += to_f32(d_y[i * static_cast<std::size_t>(width) + static_cast<std::size_t>(c)]);
      }
      T& out = d_table[static_cast<std::size_t>(row * width + c)];
      out = rounded<T>(to_f32(out) + sum);
    }
  }
}

TEST_CASE("positions are sorted by id, then by position") {
  const std::vector<std::int32_t> ids = {5, 0, 5, 2, 0, 5};
  CHECK(sorted(ids) == std::vector<std::int32_t>{1, 4, 3, 0, 2, 5});
  CHECK(sorted({}).empty());
}

TEMPLATE_TEST_CASE("gather copies the rows of the ids", "", float, Bf16) {
  constexpr std::int64_t kWidth = 37;
  ThreadPool pool(2);
  const auto table = noise_array<TestType>(11 * kWidth, 0);
  const auto ids = make_ids(100, 11);
  std::vector<TestType> y(100 * kWidth);
  gather_rows(DTypeOf<TestType>::kValue, table.data(), kWidth, ids, y.data(), pool);
  std::vector<TestType> want;
  for (const std::int32_t id : ids)
    want.insert(want.end(), table.begin() + id * kWidth, table.begin() + (id + 1) * kWidth);
  CHECK(same_bits(y, want));
}

TEST_CASE("the sum of a row starts at 0 and runs in order of position") {
  ThreadPool pool(1);
  const std::vector<std::int32_t> ids = {0, 1, 0, 0};
  // (1e8 + 1) - 1e8 is 0 in f32; any other order gives 1. Added to the table's 1e8 first, the 1 would vanish as well.
  const std::vector<float> d_y = {1e8F, 7, 1, -1e8F};
  std::vector<float> d_table = {0.5F, 1};
  scatter_add_rows(DType::kF32, ids, sorted(ids), d_y.data(), 1, 0, 2, d_table.data(), pool);
  CHECK(d_table == std::vector<float>{0.5F, 8});
}

TEST_CASE("a bf16 row is rounded once, after the sum") {
  ThreadPool pool(1);
  const std::vector<std::int32_t> ids(4, 0);
  const std::vector<Bf16> d_y(4, to_bf16(1.0F / 512));  // each alone is lost beside 1, together they are one ulp
  std::vector<Bf16> d_table = {to_bf16(1)};
  scatter_add_rows(DType::kBf16, ids, sorted(ids), d_y.data(), 1, 0, 1, d_table.data(), pool);
  CHECK(to_f32(d_table[0]) == 1 + 1.0F / 128);
}

TEMPLATE_TEST_CASE("scatter-add gives the contract's bits with any number of threads", "", float, Bf16) {
  constexpr std::int32_t kVocab = 61;
  for (const std::int64_t width : {std::int64_t{1}, std::int64_t{37}, kRowColumns + 3}) {
    for (const std::int64_t n : {0, 1, 31, 32, 33, 517}) {
      const auto ids = make_ids(n, kVocab);
      const auto d_y = noise_array<TestType>(n * width, 1);
      const auto start = noise_array<TestType>(kVocab * width, 2);
      auto want = start;
      reference(ids, d_y, width, want);
      for (const int n_threads : {1, 2, 5}) {
        ThreadPool pool(n_threads);
        auto got = start;
        scatter_add_rows(DTypeOf<TestType>::kValue, ids, sorted(ids), d_y.data(), width, 0, kVocab, got.data(), pool);
        INFO("width " << width << ", n " << n << ", threads " << n_threads);
        CHECK(same_bits(got, want));
      }
    }
  }
}

TEMPLATE_TEST_CASE("row ranges together give the bits of the whole table", "", float, Bf16) {
  constexpr std::int64_t kWidth = 40;
  constexpr std::int32_t kVocab = 61;
  ThreadPool pool(2);
  const auto ids = make_ids(300, kVocab);
  const auto order = sorted(ids);
  const auto d_y = noise_array<TestType>(300 * kWidth, 1);
  const auto start = noise_array<TestType>(kVocab * kWidth, 2);
  auto want = start;
  scatter_add_rows(DTypeOf<TestType>::kValue, ids, order, d_y.data(), kWidth, 0, kVocab, want.data(), pool);
  auto got = start;
  for (const auto& [first, last] : {std::pair{0, 3}, {3, 4}, {4, 4}, {4, 60}, {60, 61}}) {
    scatter_add_rows(DTypeOf<TestType>::kValue, ids, order, d_y.data(), kWidth, first, last - first,
                     got.data() + first * kWidth, pool);
  }
  CHECK(same_bits(got, want));
}

TEST_CASE("rows whose id does not occur are left alone") {
  ThreadPool pool(1);
  const std::vector<std::int32_t> ids = {1};
  const std::vector<float> d_y = {1};
  std::vector<float> d_table = {-0.0F, -0.0F, -0.0F};
  scatter_add_rows(DType::kF32, ids, sorted(ids), d_y.data(), 1, 0, 3, d_table.data(), pool);
  CHECK(std::signbit(d_table[0]));
  CHECK(d_table[1] == 1);
  CHECK(std::signbit(d_table[2]));
}

TEST_CASE("an order of another length than the ids is refused") {
  const std::vector<std::int32_t> ids(3);
  std::vector<std::int32_t> order(2);
  CHECK(contains(error_of([&] { sort_positions(ids, order); }), "order has 2 positions, ids 3"));
}

TEST_CASE("embedding rows that are not floating point are refused") {
  ThreadPool pool(1);
  CHECK(contains(error_of([&] { gather_rows(DType::kI16, nullptr, 1, {}, nullptr, pool); }),
                 "type i16: expected f32 or bf16"));
}

}  // namespace
}  // namespace ferry
