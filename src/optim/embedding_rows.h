// SPDX-License-Identifier: Apache-2.0
// Rows of an embedding table in host memory: gather, and the fixed-order sum of their gradients.
// The CPU backend's ops and the host side of the offload engine share this code, so both give the same bits.
#pragma once

#include <cstdint>
#include <span>

#include "core/tensor_view.h"

namespace ferry {

class ThreadPool;

/// Positions 0..N-1 sorted by (ids[i], i): the order in which EmbeddingBackward sums.
void sort_positions(std::span<const std::int32_t> ids, std::span<std::int32_t> order);

/// y[i,:] = table[ids[i],:].  table: (V, C), y: (N, C), both `dtype` (kF32 | kBf16); width: C. Every id is in [0, V):
/// the caller checks.
void gather_rows(DType dtype, const void* table, std::int64_t width, std::span<const std::int32_t> ids, void* y,
                 ThreadPool& pool);

/// columns[c] = round(f32(columns[c]) + sum over `positions`, in their order from 0, of d_y[position, begin + c]), at
/// most kRowColumns of them.  d_y: (N, C); columns: (n), of a row of d_table; both f32 or both bf16.
void add_row(std::span<const std::int32_t> positions, const TensorView& d_y, std::int64_t begin,
             const TensorView& columns);
inline constexpr std::int64_t kRowColumns = 1024;

/// d_table[r,:] = round(f32(d_table[r,:]) + sum_{ids[i]=r} d_y[i,:]); the f32 sum starts at 0 and runs in order of i.
/// Rows [first_row, first_row + n_rows) only, d_table points at first_row; ids outside are skipped.
/// d_y: (N, C), d_table: (n_rows, C), both `dtype`; width: C; order: as sort_positions(ids) leaves it.
void scatter_add_rows(DType dtype, std::span<const std::int32_t> ids, std::span<const std::int32_t> order,
                      const void* d_y, std::int64_t width, std::int64_t first_row, std::int64_t n_rows, void* d_table,
                      ThreadPool& pool);

}  // namespace ferry
