// SPDX-License-Identifier: Apache-2.0
// AdamW on pieces and embedding rows in host memory, shared out over a pool.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "core/thread_pool.h"
#include "offload/parameter_arrays.h"
#include "offload/pieces.h"
#include "offload/row_updates.h"

namespace ferry {

/// Scalars of one step for parameters with and without weight decay.
struct StepScalars {
  AdamwScalars decayed;
  AdamwScalars plain;

  const AdamwScalars& of(const ParameterRange& part) const { return part.decayed ? decayed : plain; }
};

/// Work is cut by index: bits do not depend on the number of threads. One thread calls.
class HostUpdates {
 public:
  /// `backend` learns what host memory is read and written.
  HostUpdates(Backend& backend, const ParameterTable& parameters, const ParameterArrays& arrays, ThreadPool& pool);

  /// All trained parameters of a piece, from its gradient array.
  void update(const Piece& piece, const StepScalars& scalars);
  /// Rows of the embedding table a piece holds.
  RowRun rows_of(const Piece& piece) const;
  /// Of those, the ones among `rows`, which ascend, or all others. Their gradient is 0 where the table keeps no
  /// gradient array.
  void update_rows_of(const Piece& piece, std::span<const std::int32_t> rows, const StepScalars& scalars);
  void update_other_rows(const Piece& piece, std::span<const std::int32_t> rows, const StepScalars& scalars);
  /// Makes the gradients of distinct rows that the batch reads, `which` by their number, and updates each while it is
  /// in cache; without `scalars` it is made for its squares alone. `squares` has one place for each row and cut of
  /// columns, so that their sum in order does not depend on which rows come together.
  void update_rows(const BatchRows& rows, const RowGradients& gradients, std::span<const std::int32_t> which,
                   const StepScalars* scalars, std::vector<double>& squares);

 private:
  void update_runs(const std::vector<RowRun>& runs, const StepScalars& scalars);
  void note_update(std::int64_t offset, std::int64_t elems);
  void note_reads(const RowGradients& gradients);
  double update_row(const BatchRows& rows, const RowGradients& gradients, std::size_t k, std::int64_t begin,
                    const StepScalars* scalars) const;
  ParameterRange rows_range(std::int64_t first, std::int64_t count) const;

  Backend& backend_;
  const ParameterTable& parameters_;
  const ParameterArrays& arrays_;
  ThreadPool& pool_;
  const ParameterInfo& table_;  // the embedding
  const std::int64_t width_;
  std::vector<std::byte> zeros_;  // gradient of a run of rows
};

}  // namespace ferry
