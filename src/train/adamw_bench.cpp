// SPDX-License-Identifier: Apache-2.0
// All columns of a row run over the same memory in turns, so that they meet the same noise.
#include "train/adamw_bench.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "core/error.h"
#include "core/thread_pool.h"
#include "train/host_passes.h"
#include "train/stopwatch.h"

namespace ferry {
namespace {

constexpr int kColumn = 19;

AdamwBenchRow bench_pool(HostPasses& passes, const PoolPlacement& placement, const AdamwBenchOptions& options) {
  ThreadPool pool(placement);
  std::array<double, HostPasses::kCount> best{};  // GB/s
  const Stopwatch watch;
  do {
    for (std::size_t pass = 0; pass < best.size(); ++pass) {
      for (int turn = 0; turn < HostPasses::turns(pass); ++turn) {
        const Stopwatch one;
        passes.run(pass, options.level, pool);
        best[pass] = std::max(best[pass], passes.bytes(pass) / one.seconds() / 1e9);
      }
    }
  } while (watch.seconds() < options.seconds_per_row);
  return {.n_threads = placement.n_threads,
          .triad = best[HostPasses::kTriad],
          .in_place = best[HostPasses::kInPlace],
          .formats = {best.begin() + HostPasses::kAdamw, best.end()}};
}

}  // namespace

std::vector<std::string> adamw_bench_formats() {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < HostPasses::kFormats; ++i) names.push_back(HostPasses::format_label(i));
  return names;
}

std::vector<PoolPlacement> adamw_bench_pools(int numa_node) {
  const int useful = place_pool(0, numa_node).n_threads;
  std::vector<int> counts = {useful, available_threads()};
  for (int n = 1; n < useful; n *= 2) counts.push_back(n);
  if (useful >= 8) counts.insert(counts.end(), {useful - 4, useful - 2, useful + 1});
  std::ranges::sort(counts);
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  std::vector<PoolPlacement> pools;
  for (const int n : counts) pools.push_back(place_pool(n, numa_node));
  return pools;
}

std::vector<AdamwBenchRow> bench_adamw(Backend& backend, const AdamwBenchOptions& options,
                                       const std::function<void(const AdamwBenchRow&)>& report) {
  FERRY_ASSERT(!options.pools.empty());
  ThreadPool first_touch(options.pools.back());
  HostPasses passes(backend, options.n_params, first_touch);
  std::vector<AdamwBenchRow> rows;
  for (const PoolPlacement& placement : options.pools) {
    rows.push_back(bench_pool(passes, placement, options));
    report(rows.back());
  }
  return rows;
}

std::string adamw_bench_header() {
  std::string text = fmt::format("{:>7} {:>8} {:>9}", "threads", "triad", "in place");
  for (const std::string& name : adamw_bench_formats()) text += fmt::format(" {:>{}}", name, kColumn);
  return text;
}

std::string to_line(const AdamwBenchRow& row) {
  std::string text = fmt::format("{:>7} {:>8.1f} {:>9.1f}", row.n_threads, row.triad, row.in_place);
  for (const double rate : row.formats) {
    text += fmt::format(" {:>{}}", fmt::format("{:.1f} {:.2f}", rate, rate / row.in_place), kColumn);
  }
  return text;
}

std::vector<std::string> adamw_bench_summary(const std::vector<AdamwBenchRow>& rows) {
  const double in_place = std::ranges::max(rows, {}, &AdamwBenchRow::in_place).in_place;
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < HostPasses::kFormats; ++i) {
    const auto rate = [i](const AdamwBenchRow& row) { return row.formats[i]; };
    const AdamwBenchRow& best = std::ranges::max(rows, {}, rate);
    lines.push_back(
        fmt::format("{}: {:.1f} GB/s on {} thread{}, {:.2f} of the fastest pass in place, {:.1f} ms per "
                    "billion parameters",
                    HostPasses::format_name(i), rate(best), best.n_threads, best.n_threads == 1 ? "" : "s",
                    rate(best) / in_place, static_cast<double>(HostPasses::bytes_per_param(i)) / rate(best) * 1e3));
  }
  return lines;
}

}  // namespace ferry
