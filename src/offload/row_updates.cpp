// SPDX-License-Identifier: Apache-2.0
// Work is cut by row and by columns, so that neither threads nor a token that occurs often change a bit.
#include "offload/row_updates.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "core/error.h"
#include "core/int_math.h"
#include "core/thread_pool.h"
#include "optim/embedding_rows.h"

namespace ferry {
namespace {

template <class T>
double sum_of_squares(const T* values, std::int64_t n) {
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const auto value = static_cast<double>(to_f32(values[i]));
    sum += value * value;
  }
  return sum;
}

double sum_of_squares(DType dtype, const void* row, std::int64_t begin, std::int64_t end) {
  return dtype == DType::kF32 ? sum_of_squares(static_cast<const float*>(row) + begin, end - begin)
                              : sum_of_squares(static_cast<const Bf16*>(row) + begin, end - begin);
}

// Work of one task: few enough tasks for their hand-out not to count, small enough for a token that occurs often.
constexpr std::int64_t kBlockRows = 8;
constexpr std::int64_t kBlockColumns = 2 * kRowColumns;

/// Adds d_x, if there is any, to columns [begin, end) of a row, which starts from 0 unless it is the table's own.
void sum_columns(std::span<const std::int32_t> positions, const RowGradients& gradients, void* row, std::int64_t begin,
                 std::int64_t end) {
  if (!gradients.d_x) return;
  const DType dtype = gradients.d_x.dtype;
  if (!gradients.by_id) {
    const std::size_t size = size_of(dtype);
    std::memset(static_cast<std::byte*>(row) + static_cast<std::size_t>(begin) * size, 0,
                static_cast<std::size_t>(end - begin) * size);
  }
  for (; begin < end; begin += kRowColumns) {
    add_row(dtype, positions, gradients.d_x, begin, std::min(begin + kRowColumns, end), row);
  }
}

}  // namespace

BatchRows::BatchRows(std::span<const std::int32_t> ids) : order_(ids.size()) {
  sort_positions(ids, order_);
  for (std::size_t i = 0; i < order_.size(); ++i) {
    const std::int32_t id = ids[static_cast<std::size_t>(order_[i])];
    if (!distinct_.empty() && distinct_.back() == id) continue;
    distinct_.push_back(id);
    starts_.push_back(i);
  }
  starts_.push_back(order_.size());
}

std::span<const std::int32_t> BatchRows::positions(std::size_t k) const {
  return std::span(order_).subspan(starts_[k], starts_[k + 1] - starts_[k]);
}

std::span<const std::int32_t> rows_within(std::span<const std::int32_t> rows, RowRun range) {
  const auto first = std::ranges::lower_bound(rows, range.first);
  return {first, std::lower_bound(first, rows.end(), range.end())};
}

std::vector<RowRun> runs_of(std::span<const std::int32_t> rows, RowRun range, std::int64_t most) {
  std::vector<RowRun> runs;
  for (const std::int32_t row : rows_within(rows, range)) {
    if (!runs.empty() && runs.back().end() == row && runs.back().count < most) {
      ++runs.back().count;
    } else {
      runs.push_back({row, 1});
    }
  }
  return runs;
}

std::vector<RowRun> runs_between(std::span<const std::int32_t> rows, RowRun range, std::int64_t most) {
  std::vector<RowRun> runs;
  const auto add = [&](std::int64_t first, std::int64_t end) {
    for (; first < end; first += most) runs.push_back({first, std::min(most, end - first)});
  };
  std::int64_t next = range.first;
  for (const std::int32_t row : rows_within(rows, range)) {
    add(next, row);
    next = row + 1;
  }
  add(next, range.end());
  return runs;
}

void* row_gradient(const BatchRows& rows, const RowGradients& gradients, DType dtype, std::int64_t width,
                   std::size_t k) {
  const std::int64_t row = gradients.by_id ? rows.distinct()[k] : static_cast<std::int64_t>(k);
  return static_cast<std::byte*>(gradients.data) + row * width * static_cast<std::int64_t>(size_of(dtype));
}

double sum_row_gradients(const BatchRows& rows, const RowGradients& gradients, DType dtype, std::int64_t width,
                         ThreadPool& pool) {
  const auto n_rows = static_cast<std::int64_t>(rows.distinct().size());
  const std::int64_t n_blocks = ceil_div(n_rows, kBlockRows);
  const std::int64_t n_cuts = ceil_div(width, kBlockColumns);
  std::vector<double> squares(static_cast<std::size_t>(n_blocks * n_cuts));
  pool.parallel_for(n_blocks * n_cuts, [&](std::int64_t i) {
    const std::int64_t end_row = std::min((i / n_cuts + 1) * kBlockRows, n_rows);
    const std::int64_t begin = i % n_cuts * kBlockColumns;
    const std::int64_t end = std::min(begin + kBlockColumns, width);
    double sum = 0;
    for (std::int64_t k = i / n_cuts * kBlockRows; k < end_row; ++k) {
      void* row = row_gradient(rows, gradients, dtype, width, static_cast<std::size_t>(k));
      sum_columns(rows.positions(static_cast<std::size_t>(k)), gradients, row, begin, end);
      sum += sum_of_squares(dtype, row, begin, end);
    }
    squares[static_cast<std::size_t>(i)] = sum;
  });
  return std::accumulate(squares.begin(), squares.end(), 0.0);
}

}  // namespace ferry
