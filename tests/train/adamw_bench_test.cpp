// SPDX-License-Identifier: Apache-2.0
#include "train/adamw_bench.h"

#include <algorithm>

#include "catch.h"
#include "thrown.h"

namespace ferry {
namespace {

AdamwBenchOptions one_piece() {
  return {.n_params = std::int64_t{8} << 20,
          .pools = {{.n_threads = 2, .cpus = {}}},
          .level = simd_level(),
          .seconds_per_row = 0};
}

TEST_CASE("the formats of AdamW count what they read and write") {
  const std::vector<std::string> expected = {"f32 (26 B)", "mixed (18 B)", "bf16 (14 B)", "bf16 nearest (14 B)"};
  CHECK(adamw_bench_formats() == expected);
}

TEST_CASE("the sweep of threads ascends, begins with one and holds the pool that training takes") {
  const auto pools = adamw_bench_pools(-1);
  CHECK(pools.front().n_threads == 1);
  CHECK(std::ranges::is_sorted(pools, std::ranges::less{}, &PoolPlacement::n_threads));
  CHECK(std::ranges::count(pools, place_pool(0, -1).n_threads, &PoolPlacement::n_threads) == 1);
}

TEST_CASE("every column of the table is measured, and the summary has a line for each format") {
  const auto backend = create_backend("cpu", {});
  int n_reported = 0;
  const auto rows = bench_adamw(*backend, one_piece(), [&](const AdamwBenchRow&) { ++n_reported; });
  REQUIRE(rows.size() == 1);
  CHECK(n_reported == 1);
  CHECK(rows[0].n_threads == 2);
  CHECK(rows[0].triad > 0);
  CHECK(rows[0].in_place > 0);
  CHECK(std::ranges::all_of(rows[0].formats, [](double rate) { return rate > 0; }));
  CHECK(to_line(rows[0]).size() == adamw_bench_header().size());
  CHECK(adamw_bench_summary(rows).size() == adamw_bench_formats().size());
}

TEST_CASE("a benchmark of less than a piece is refused") {
  const auto backend = create_backend("cpu", {});
  AdamwBenchOptions options = one_piece();
  options.n_params = 1000;
  CHECK(thrown([&] { bench_adamw(*backend, options, [](const AdamwBenchRow&) {}); }) ==
        "config: 1000 parameters to update: expected 8388608 or more");
}

}  // namespace
}  // namespace ferry
