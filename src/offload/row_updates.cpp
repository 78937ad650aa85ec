// SPDX-License-Identifier: Apache-2.0
// Which rows a batch reads, runs of rows, and the gradient of a row.
#include "offload/row_updates.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <numeric>

#include "optim/embedding_rows.h"

namespace ferry {
namespace {

/// In lanes, for vectors, then over the lanes.
template <class T>
double sum_of_squares(const T* values, std::int64_t n) {
  constexpr std::int64_t kLanes = 8;
  double lanes[kLanes] = {};
  const auto add = [&](std::int64_t i, std::int64_t count) {
    for (std::int64_t lane = 0; lane < count; ++lane) {
      const auto value = static_cast<double>(to_f32(values[i + lane]));
      lanes[lane] += value * value;
    }
  };
  const std::int64_t whole = n - n % kLanes;
  for (std::int64_t i = 0; i < whole; i += kLanes) add(i, kLanes);
  add(whole, n - whole);
  return std::accumulate(std::begin(lanes), std::end(lanes), 0.0);
}

/// The row's own gradient from column `begin` on, or 0.
void start_row(const BatchRows& rows, const RowGradients& gradients, std::size_t k, std::int64_t begin,
               const TensorView& columns) {
  if (!gradients.own) {
    std::memset(columns.data, 0, columns.size_bytes());
    return;
  }
  const std::int64_t row = gradients.d_x ? rows.distinct()[k] : static_cast<std::int64_t>(k);
  const std::int64_t first = row * gradients.own.shape[1] + begin;
  const auto* own = static_cast<const std::byte*>(gradients.own.data);
  std::memcpy(columns.data, own + first * static_cast<std::int64_t>(size_of(columns.dtype)), columns.size_bytes());
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

RowSplit split_rows(const BatchRows& now, const BatchRows* then) {
  RowSplit split;
  const std::span<const std::int32_t> ours = now.distinct();
  const std::span<const std::int32_t> theirs = then != nullptr ? then->distinct() : ours;
  auto other = theirs.begin();
  for (std::size_t k = 0; k < ours.size(); ++k) {
    while (other != theirs.end() && *other < ours[k]) ++other;
    const bool in_both = other != theirs.end() && *other == ours[k];
    (in_both ? split.both : split.rest).push_back(static_cast<std::int32_t>(k));
  }
  std::ranges::set_difference(theirs, ours, std::back_inserter(split.early));
  std::ranges::set_union(theirs, ours, std::back_inserter(split.either));
  return split;
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

double make_row_gradient(const BatchRows& rows, const RowGradients& gradients, std::size_t k, std::int64_t begin,
                         const TensorView& columns) {
  start_row(rows, gradients, k, begin, columns);
  if (gradients.d_x) add_row(rows.positions(k), gradients.d_x, begin, columns);
  return columns.dtype == DType::kF32 ? sum_of_squares(columns.as<float>(), columns.elems())
                                      : sum_of_squares(columns.as<Bf16>(), columns.elems());
}

}  // namespace ferry
