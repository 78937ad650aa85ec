// SPDX-License-Identifier: Apache-2.0
// How fast a backend runs its ops, beside what the machine can do: `ferry bench ops`.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "core/simd.h"

namespace ferry {

/// One op at one shape.
struct OpBenchRow {
  std::string op;     // "y = x W^T"
  std::string shape;  // "512 x 8192 x 2048": rows, columns, depth
  DType dtype = DType::kF32;
  double ms = 0;
  double rate = 0;       // in `unit`
  std::string unit;      // "GFLOP/s", or "GB/s" of the elements that the op reads and writes
  double yardstick = 0;  // the same rate of a plain f32 Eigen product, or of a copy of as many bytes; 0 = none
};

struct OpBenchOptions {
  int threads = 1;                       // of the Eigen products: as many as the backend uses
  SimdLevel level = SimdLevel::kScalar;  // of the Eigen products
  double seconds_per_op = 0.3;           // the fastest repetition within it counts
};

/// Shapes of the tiny model and of a slice of a 1B model; f32 and bf16; calls `report` after each row.
/// Blocks; takes about 100 times seconds_per_op. Throws Error{kMemory} when the tensors (300 MB) do not fit.
std::vector<OpBenchRow> bench_ops(Backend& backend, const OpBenchOptions& options,
                                  const std::function<void(const OpBenchRow&)>& report);

/// One line of the table per row; the header names the columns.
std::string op_bench_header();
std::string to_line(const OpBenchRow& row);

}  // namespace ferry
