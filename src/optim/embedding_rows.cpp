// SPDX-License-Identifier: Apache-2.0
// Gather copies rows; scatter-add sums each row's gradients in order of position, whatever the number of threads.
#include "optim/embedding_rows.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "core/error.h"
#include "core/int_math.h"
#include "core/thread_pool.h"

namespace ferry {
namespace {

// Work is cut by index: rows of a gather, sorted positions x columns of a scatter. About 64 KiB each at common widths.
constexpr std::int64_t kRowCut = 16;
constexpr std::int64_t kPositionCut = 32;

void check_dtype(DType dtype) {
  FERRY_CHECK(dtype == DType::kF32 || dtype == DType::kBf16, kDType,
              "embedding rows are of type {}: expected f32 or bf16", to_string(dtype));
}

void round_to(float value, float& out) { out = value; }
void round_to(float value, Bf16& out) { out = to_bf16(value); }

/// Asks for what is read next, since the positions of a row lie apart.
template <class T>
void prefetch(const T* values, std::size_t n) {
  for (std::size_t i = 0; i < n; i += 64 / sizeof(T)) __builtin_prefetch(values + i);
}

/// `columns` are those of a row from column `begin` on.
template <class T>
void add_columns(std::span<const std::int32_t> positions, const T* d_y, std::int64_t width, std::int64_t begin,
                 std::span<T> columns) {
  float sum[kRowColumns] = {};
  for (std::size_t i = 0; i < positions.size(); ++i) {
    if (i + 1 < positions.size()) prefetch(d_y + positions[i + 1] * width + begin, columns.size());
    const T* in = d_y + positions[i] * width + begin;
    for (std::size_t c = 0; c < columns.size(); ++c) sum[c] += to_f32(in[c]);
  }
  for (std::size_t c = 0; c < columns.size(); ++c) round_to(to_f32(columns[c]) + sum[c], columns[c]);
}

template <class T>
void add_columns(std::span<const std::int32_t> positions, const TensorView& d_y, std::int64_t begin,
                 const TensorView& columns) {
  const std::span out(columns.as<T>(), static_cast<std::size_t>(columns.elems()));
  add_columns(positions, static_cast<const T*>(d_y.as<T>()), d_y.shape[1], begin, out);
}

template <class T>
struct Scatter {
  std::span<const std::int32_t> ids;
  std::span<const std::int32_t> order;  // the positions whose id lies in the row range
  const T* d_y;
  std::int64_t width;
  std::int64_t first_row;
  T* d_table;

  std::int32_t id(std::size_t k) const { return ids[static_cast<std::size_t>(order[k])]; }

  /// Columns [begin, end) of one row: the positions order[first, last) share an id.
  void add_run(std::size_t first, std::size_t last, std::int64_t begin, std::int64_t end) const {
    T* const row = d_table + (id(first) - first_row) * width;
    add_columns(order.subspan(first, last - first), d_y, width, begin, std::span(row + begin, row + end));
  }

  /// The runs that start in the cut. Each run is summed by one task, to its end, so cuts do not change the sum.
  void add_cut(std::int64_t cut, std::int64_t column_cut) const {
    const std::int64_t begin = column_cut * kRowColumns;
    const std::int64_t end = std::min(begin + kRowColumns, width);
    auto k = static_cast<std::size_t>(cut * kPositionCut);
    const std::size_t stop = std::min(k + kPositionCut, order.size());
    while (k < stop && k > 0 && id(k) == id(k - 1)) ++k;
    while (k < stop) {
      std::size_t last = k + 1;
      while (last < order.size() && id(last) == id(k)) ++last;
      add_run(k, last, begin, end);
      k = last;
    }
  }
};

template <class T>
void scatter(const Scatter<T>& work, ThreadPool& pool) {
  const std::int64_t n_columns = ceil_div(work.width, kRowColumns);
  const std::int64_t n_cuts = ceil_div(static_cast<std::int64_t>(work.order.size()), kPositionCut);
  pool.parallel_for(n_cuts * n_columns, [&](std::int64_t i) { work.add_cut(i / n_columns, i % n_columns); });
}

}  // namespace

void sort_positions(std::span<const std::int32_t> ids, std::span<std::int32_t> order) {
  FERRY_CHECK(order.size() == ids.size(), kShape, "order has {} positions, ids {}: expected equal counts", order.size(),
              ids.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    const std::int32_t id_a = ids[static_cast<std::size_t>(a)];
    const std::int32_t id_b = ids[static_cast<std::size_t>(b)];
    return id_a != id_b ? id_a < id_b : a < b;
  });
}

void gather_rows(DType dtype, const void* table, std::int64_t width, std::span<const std::int32_t> ids, void* y,
                 ThreadPool& pool) {
  check_dtype(dtype);
  const std::size_t row_bytes = static_cast<std::size_t>(width) * size_of(dtype);
  const auto n = static_cast<std::int64_t>(ids.size());
  pool.parallel_for(ceil_div(n, kRowCut), [&](std::int64_t cut) {
    const std::int64_t end = std::min((cut + 1) * kRowCut, n);
    for (std::int64_t i = cut * kRowCut; i < end; ++i) {
      const auto row = static_cast<std::size_t>(i);
      std::memcpy(static_cast<std::byte*>(y) + row * row_bytes,
                  static_cast<const std::byte*>(table) + static_cast<std::size_t>(ids[row]) * row_bytes, row_bytes);
    }
  });
}

void add_row(std::span<const std::int32_t> positions, const TensorView& d_y, std::int64_t begin,
             const TensorView& columns) {
  FERRY_ASSERT(columns.elems() <= kRowColumns);
  if (columns.dtype == DType::kF32) {
    add_columns<float>(positions, d_y, begin, columns);
  } else {
    add_columns<Bf16>(positions, d_y, begin, columns);
  }
}

void scatter_add_rows(DType dtype, std::span<const std::int32_t> ids, std::span<const std::int32_t> order,
                      const void* d_y, std::int64_t width, std::int64_t first_row, std::int64_t n_rows, void* d_table,
                      ThreadPool& pool) {
  check_dtype(dtype);
  FERRY_CHECK(order.size() == ids.size(), kShape, "order has {} positions, ids {}: expected equal counts", order.size(),
              ids.size());
  const auto before = [&](std::int32_t position, std::int64_t row) {
    return ids[static_cast<std::size_t>(position)] < row;
  };
  const auto first = std::lower_bound(order.begin(), order.end(), first_row, before);
  const auto last = std::lower_bound(first, order.end(), first_row + n_rows, before);
  const auto in_range =
      order.subspan(static_cast<std::size_t>(first - order.begin()), static_cast<std::size_t>(last - first));
  if (dtype == DType::kF32) {
    scatter(
        Scatter<float>{ids, in_range, static_cast<const float*>(d_y), width, first_row, static_cast<float*>(d_table)},
        pool);
  } else {
    scatter(Scatter<Bf16>{ids, in_range, static_cast<const Bf16*>(d_y), width, first_row, static_cast<Bf16*>(d_table)},
            pool);
  }
}

}  // namespace ferry
