// SPDX-License-Identifier: Apache-2.0
// Pieces by fixed cuts of elements, rows by runs; a batch's rows by columns too, since a token may occur often.
#include "offload/host_updates.h"

#include <algorithm>
#include <array>

#include "core/int_math.h"
#include "optim/embedding_rows.h"

namespace ferry {
namespace {

// Rows that one task updates: a few times kAdamwCut elements at common widths.
constexpr std::int64_t kRunRows = 32;
// Of the batch's rows a task takes kRowColumns columns: about 3 us each where every token differs (one core of a
// virtual Xeon, bf16 state), a hand-out is far below one. More rows would leave threads idle where few tokens occur
// often.
constexpr std::int64_t kTaskRows = 4;

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

void HostUpdates::update_rows(const BatchRows& rows, const RowGradients& gradients, std::span<const std::int32_t> which,
                              const StepScalars* scalars, std::vector<double>& squares) {
  note_reads(gradients);
  if (scalars != nullptr) {
    for (const std::int32_t k : which) {
      note_update(table_.offset + rows.distinct()[static_cast<std::size_t>(k)] * width_, width_);
    }
  }
  const std::int64_t n_cuts = ceil_div(width_, kRowColumns);
  squares.resize(rows.distinct().size() * static_cast<std::size_t>(n_cuts));
  const auto n = static_cast<std::int64_t>(which.size());
  pool_.parallel_for(ceil_div(n, kTaskRows) * n_cuts, [&](std::int64_t task) {
    const std::int64_t cut = task % n_cuts;
    const std::int64_t first = task / n_cuts * kTaskRows;
    for (std::int64_t i = first; i < std::min(first + kTaskRows, n); ++i) {
      const std::int32_t k = which[static_cast<std::size_t>(i)];
      squares[static_cast<std::size_t>(k * n_cuts + cut)] =
          update_row(rows, gradients, static_cast<std::size_t>(k), cut * kRowColumns, scalars);
    }
  });
}

/// Columns [begin, begin + kRowColumns) of the k-th distinct row. Returns the sum of squares of their gradient.
double HostUpdates::update_row(const BatchRows& rows, const RowGradients& gradients, std::size_t k, std::int64_t begin,
                               const StepScalars* scalars) const {
  alignas(64) std::array<std::byte, static_cast<std::size_t>(kRowColumns) * sizeof(float)> memory;
  const TensorView gradient(memory.data(), arrays_.dtype(), {std::min(kRowColumns, width_ - begin)});
  const double squares = make_row_gradient(rows, gradients, k, begin, gradient);
  if (scalars == nullptr) return squares;
  ParameterRange part = rows_range(rows.distinct()[k], 1);
  part.offset += begin;
  part.element += begin;
  part.elems = gradient.elems();
  adamw_update(adamw_range(arrays_, part, gradient.data), scalars->of(part), simd_level());
  return squares;
}

/// For backends that look for races.
void HostUpdates::note_reads(const RowGradients& gradients) {
  for (const TensorView& view : {gradients.d_x, gradients.own}) {
    if (view) backend_.host_access(Access::kRead, view.data, view.size_bytes(), "gradients of embedding rows");
  }
}

}  // namespace ferry
