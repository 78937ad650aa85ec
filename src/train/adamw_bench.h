// SPDX-License-Identifier: Apache-2.0
// How fast AdamW goes over host memory, beside what the memory gives: `ferry bench adamw`.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "core/cpu_topology.h"
#include "core/simd.h"

namespace ferry {

struct AdamwBenchOptions {
  /// As many as make the arrays far larger than any L3 cache. They take 14 bytes each.
  std::int64_t n_params = std::int64_t{1} << 27;
  std::vector<PoolPlacement> pools;  // one row of the table each; at least one
  SimdLevel level = SimdLevel::kScalar;
  double seconds_per_row = 5;  // all columns take turns; the fastest turn of each counts
};

/// Bytes that are read and written, in GB/s.
struct AdamwBenchRow {
  int n_threads = 1;
  double triad = 0;  // see HostPasses
  double in_place = 0;
  std::vector<double> formats;  // AdamW, in the order of adamw_bench_formats()
};

/// "f32 (26 B)": see HostPasses::format_label.
std::vector<std::string> adamw_bench_formats();

/// Pools for the sweep: 1, 2, 4, ... threads, as many as are useful, and all that are available.
std::vector<PoolPlacement> adamw_bench_pools(int numa_node);

/// bf16 weights in host memory of `backend`, updated in pieces as the engine does. Calls `report` after each row.
/// Blocks. Throws Error{kMemory} when the arrays do not fit.
std::vector<AdamwBenchRow> bench_adamw(Backend& backend, const AdamwBenchOptions& options,
                                       const std::function<void(const AdamwBenchRow&)>& report);

/// The columns' names, a line of the table, and the line below it: which pool is fastest in each format.
std::string adamw_bench_header();
std::string to_line(const AdamwBenchRow& row);
std::vector<std::string> adamw_bench_summary(const std::vector<AdamwBenchRow>& rows);

}  // namespace ferry
