// SPDX-License-Identifier: Apache-2.0
// The embedding rows that a batch reads: their gradients on the host, and which rows AdamW may update without them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/tensor_view.h"

namespace ferry {

/// The rows of the embedding table that one batch reads.
class BatchRows {
 public:
  explicit BatchRows(std::span<const std::int32_t> ids);

  std::span<const std::int32_t> order() const { return order_; }        // (N), positions sorted by (id, position)
  std::span<const std::int32_t> distinct() const { return distinct_; }  // ascending
  /// Positions of the k-th distinct row, ascending.
  std::span<const std::int32_t> positions(std::size_t k) const;

 private:
  std::vector<std::int32_t> order_;
  std::vector<std::int32_t> distinct_;
  std::vector<std::size_t> starts_;  // of each distinct row's positions in order_, and the end
};

/// Which rows are updated together when one batch follows another; where none is known, `both` has all rows.
struct RowSplit {
  std::vector<std::int32_t> both;    // distinct rows of `now`, by number, that `then` reads too
  std::vector<std::int32_t> rest;    // all others of `now`, by number
  std::vector<std::int32_t> early;   // rows of `then` alone
  std::vector<std::int32_t> either;  // rows of `now` or `then`
};
RowSplit split_rows(const BatchRows& now, const BatchRows* then);

/// Neighbouring rows.
struct RowRun {
  std::int64_t first = 0;
  std::int64_t count = 0;

  std::int64_t end() const { return first + count; }
};
/// Those of `rows`, ascending, that lie in `range`.
std::span<const std::int32_t> rows_within(std::span<const std::int32_t> rows, RowRun range);
/// `range` with or without `rows`, which ascend, in runs no longer than `most`.
std::vector<RowRun> runs_of(std::span<const std::int32_t> rows, RowRun range, std::int64_t most);
std::vector<RowRun> runs_between(std::span<const std::int32_t> rows, RowRun range, std::int64_t most);

/// What the gradients of a batch's distinct rows are made of.
struct RowGradients {
  TensorView d_x;  // (N, C), gradient of the gathered rows; absent: `own` is final
  TensorView own;  // what d_x is added to, by id: (V, C), of a tied table; without d_x (R, C), by distinct row

  explicit operator bool() const { return d_x || own; }
};

/// `columns` = columns [begin, begin + n) of the k-th distinct row's gradient, n <= kRowColumns: its own, or 0, plus
/// the sum of d_x in order of position, in f32, rounded once. Returns the sum of their squares, in f64 and fixed order.
double make_row_gradient(const BatchRows& rows, const RowGradients& gradients, std::size_t k, std::int64_t begin,
                         const TensorView& columns);

}  // namespace ferry
