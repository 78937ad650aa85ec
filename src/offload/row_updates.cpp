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

BatchRows::Range BatchRows::within(std::int64_t first_row, std::int64_t end_row) const {
  const auto first = std::ranges::lower_bound(distinct_, first_row);
  const auto last = std::lower_bound(first, distinct_.end(), end_row);
  return {static_cast<std::size_t>(first - distinct_.begin()), static_cast<std::size_t>(last - distinct_.begin())};
}

std::vector<RowRun> other_rows(const BatchRows& rows, std::int64_t first_row, std::int64_t end_row, std::int64_t most) {
  std::vector<RowRun> runs;
  const auto add = [&](std::int64_t first, std::int64_t end) {
    for (; first < end; first += most) runs.push_back({first, std::min(most, end - first)});
  };
  const auto [begin, end] = rows.within(first_row, end_row);
  std::int64_t next = first_row;
  for (std::size_t k = begin; k < end; ++k) {
    add(next, rows.distinct()[k]);
    next = rows.distinct()[k] + 1;
  }
  add(next, end_row);
  return runs;
}

void* row_gradient(const BatchRows& rows, const RowGradients& gradients, DType dtype, std::int64_t width,
                   std::size_t k) {
  const std::int64_t row = gradients.by_id ? rows.distinct()[k] : static_cast<std::int64_t>(k);
  return static_cast<std::byte*>(gradients.data) + row * width * static_cast<std::int64_t>(size_of(dtype));
}

double sum_row_gradients(const BatchRows& rows, const RowGradients& gradients, DType dtype, std::int64_t width,
                         ThreadPool& pool) {
  const std::int64_t n_cuts = ceil_div(width, kRowColumns);
  const auto n_rows = static_cast<std::int64_t>(rows.distinct().size());
  std::vector<double> squares(static_cast<std::size_t>(n_rows * n_cuts));
  pool.parallel_for(n_rows * n_cuts, [&](std::int64_t i) {
    const auto k = static_cast<std::size_t>(i / n_cuts);
    const std::int64_t begin = i % n_cuts * kRowColumns;
    const std::int64_t end = std::min(begin + kRowColumns, width);
    void* row = row_gradient(rows, gradients, dtype, width, k);
    if (gradients.d_x) {
      const auto size = static_cast<std::int64_t>(size_of(dtype));
      if (!gradients.by_id) {
        std::memset(static_cast<std::byte*>(row) + begin * size, 0, static_cast<std::size_t>((end - begin) * size));
      }
      add_row(dtype, rows.positions(k), gradients.d_x, begin, end, row);
    }
    squares[static_cast<std::size_t>(i)] = sum_of_squares(dtype, row, begin, end);
  });
  return std::accumulate(squares.begin(), squares.end(), 0.0);
}

}  // namespace ferry
