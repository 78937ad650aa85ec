// SPDX-License-Identifier: Apache-2.0
// Pieces by fixed cuts of elements, rows by runs and by columns.
#include "offload/host_updates.h"

#include <algorithm>

#include "core/error.h"
#include "core/int_math.h"

namespace ferry {
namespace {

// Rows that one task updates: a few times kAdamwCut elements at common widths.
constexpr std::int64_t kRunRows = 32;

}  // namespace

HostUpdates::HostUpdates(Backend& backend, const ParameterTable& parameters, const ParameterArrays& arrays,
                         ThreadPool& pool)
    : backend_(backend),
      parameters_(parameters),
      arrays_(arrays),
      pool_(pool),
      table_(parameters.parameters().front()),
      width_(table_.shape.at(1)),
      zeros_(static_cast<std::size_t>(kRunRows * width_) * size_of(arrays.dtype())) {}

/// For backends that look for races.
void HostUpdates::note_update(std::int64_t offset, std::int64_t elems) {
  const TensorView weight = arrays_.weights_at(offset, elems);
  backend_.host_access(Access::kReadWrite, weight.data, weight.size_bytes(), "weights in AdamW");
  if (const TensorView gradient = arrays_.gradients_at(offset, elems)) {
    backend_.host_access(Access::kRead, gradient.data, gradient.size_bytes(), "gradients in AdamW");
  }
}

/// One loop for all parameters of the piece: each of their own would leave threads idle at its end.
void HostUpdates::update(const Piece& piece, const StepScalars& scalars) {
  note_update(piece.offset, piece.elems);
  std::vector<ParameterRange> cuts;
  for (ParameterRange part : parameter_ranges(parameters_, piece.offset, piece.elems)) {
    for (std::int64_t left = part.elems; left > 0; left -= part.elems) {
      part.elems = std::min(left, kAdamwCut);
      cuts.push_back(part);
      part.offset += part.elems;
      part.element += part.elems;
    }
  }
  pool_.parallel_for(static_cast<std::int64_t>(cuts.size()), [&](std::int64_t i) {
    const ParameterRange& part = cuts[static_cast<std::size_t>(i)];
    const TensorView gradient = arrays_.gradients_at(part.offset, part.elems);
    adamw_update(adamw_range(arrays_, part, gradient.data), scalars.of(part), simd_level());
  });
}

RowRun HostUpdates::rows_of(const Piece& piece) const {
  return {(piece.offset - table_.offset) / width_, piece.elems / width_};
}

void HostUpdates::update_rows_of(const Piece& piece, std::span<const std::int32_t> rows, const StepScalars& scalars) {
  update_runs(runs_of(rows, rows_of(piece), kRunRows), scalars);
}

void HostUpdates::update_other_rows(const Piece& piece, std::span<const std::int32_t> rows,
                                    const StepScalars& scalars) {
  update_runs(runs_between(rows, rows_of(piece), kRunRows), scalars);
}

void HostUpdates::update_runs(const std::vector<RowRun>& runs, const StepScalars& scalars) {
  for (const RowRun& run : runs) note_update(table_.offset + run.first * width_, run.count * width_);
  pool_.parallel_for(static_cast<std::int64_t>(runs.size()), [&](std::int64_t i) {
    const RowRun& run = runs[static_cast<std::size_t>(i)];
    const ParameterRange part = rows_range(run.first, run.count);
    const TensorView gradient = arrays_.gradients_at(part.offset, part.elems);
    adamw_update(adamw_range(arrays_, part, gradient ? gradient.data : zeros_.data()), scalars.of(part), simd_level());
  });
}

/// Rows of the table, which is parameter 0.
ParameterRange HostUpdates::rows_range(std::int64_t first, std::int64_t count) const {
  return {.offset = table_.offset + first * width_,
          .elems = count * width_,
          .decayed = table_.decayed,
          .parameter = 0,
          .element = first * width_};
}

double HostUpdates::sum_rows(const BatchRows& rows, const RowGradients& gradients) {
  const std::int64_t n = gradients.by_id ? table_.shape[0] : static_cast<std::int64_t>(rows.distinct().size());
  const auto size_bytes = static_cast<std::size_t>(n * width_) * size_of(arrays_.dtype());
  backend_.host_access(Access::kReadWrite, gradients.data, size_bytes, "gradients of embedding rows");
  if (gradients.d_x) {
    backend_.host_access(Access::kRead, gradients.d_x.data, gradients.d_x.size_bytes(), "gradient of the input");
  }
  return sum_row_gradients(rows, gradients, arrays_.dtype(), width_, pool_);
}

void HostUpdates::update_rows(const BatchRows& rows, const RowGradients& gradients, const StepScalars& scalars) {
  for (const std::int32_t row : rows.distinct()) note_update(table_.offset + row * width_, width_);
  const auto n_rows = static_cast<std::int64_t>(rows.distinct().size());
  pool_.parallel_for(ceil_div(n_rows, kRunRows), [&](std::int64_t run) {
    const std::int64_t end = std::min((run + 1) * kRunRows, n_rows);
    for (std::int64_t i = run * kRunRows; i < end; ++i) {
      const auto k = static_cast<std::size_t>(i);
      const void* gradient = row_gradient(rows, gradients, arrays_.dtype(), width_, k);
      const ParameterRange part = rows_range(rows.distinct()[k], 1);
      adamw_update(adamw_range(arrays_, part, gradient), scalars.of(part), simd_level());
    }
  });
}

}  // namespace ferry
