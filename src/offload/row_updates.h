// SPDX-License-Identifier: Apache-2.0
// The embedding rows that a batch reads: their gradients on the host, and which rows AdamW may update without them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/tensor_view.h"

namespace ferry {

class ThreadPool;

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

/// Where the gradients of a batch's rows are gathered: row k is at data + k * stride elements, or, where the rows are
/// those of a whole table, at data + distinct[k] * stride.
struct RowGradients {
  TensorView d_x;  // (N, C), gradient of the gathered rows; absent: the rows' gradients are final already
  void* data = nullptr;
  bool by_id = false;  // rows lie at their id: the tied table's own gradient, to which d_x is added
};

/// Sums d_x into the gradient of each distinct row (a compact row starts from 0), in f32 and in order of position,
/// rounded once. Returns the sum of squares of the results, in f64 and fixed order.
double sum_row_gradients(const BatchRows& rows, const RowGradients& gradients, DType dtype, std::int64_t width,
                         ThreadPool& pool);

/// The k-th distinct row's gradient.
void* row_gradient(const BatchRows& rows, const RowGradients& gradients, DType dtype, std::int64_t width,
                   std::size_t k);

}  // namespace ferry
