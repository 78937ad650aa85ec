// SPDX-License-Identifier: Apache-2.0
// All columns of a row run over the same memory in turns, so that they meet the same noise.
// Source    the triad: McCalpin 1995, "Memory bandwidth and machine balance in current high performance computers".
#include "train/adamw_bench.h"

#include <emmintrin.h>
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "core/error.h"
#include "core/int_math.h"
#include "core/thread_pool.h"
#include "optim/adamw.h"
#include "train/stopwatch.h"

namespace ferry {
namespace {

struct Format {
  const char* name;
  OptimizerState state;
  Rounding rounding;

  /// Read and written, but for the gradient, which is read.
  std::int64_t bytes_per_param() const {
    const std::size_t low = has_weight_low(DType::kBf16, state) ? size_of(DType::kI16) : 0;
    const std::size_t kept = size_of(DType::kBf16) + low + 2 * size_of(moment_dtype(DType::kBf16, state));
    return static_cast<std::int64_t>(2 * kept + size_of(DType::kBf16));
  }
};

constexpr std::array kFormats = {Format{"f32", OptimizerState::kF32, Rounding::kStochastic},
                                 Format{"mixed", OptimizerState::kMixed, Rounding::kStochastic},
                                 Format{"bf16", OptimizerState::kBf16, Rounding::kStochastic},
                                 Format{"bf16 nearest", OptimizerState::kBf16, Rounding::kNearest}};

constexpr std::int64_t kPieceElems = std::int64_t{8} << 20;   // 16 MiB of weights: EngineOptions::piece_bytes
constexpr std::int64_t kBlockBytes = std::int64_t{64} << 10;  // of the triad and the pass in place, for a task
constexpr std::int64_t kVector = 16;                          // bytes
constexpr std::int64_t kLineBytes = 64;
constexpr std::int64_t kPrefetchBytes = 2048;  // as far ahead as AdamW looks
constexpr int kColumn = 19;

/// The arrays of the widest format in one block of memory, and the pools that go over it.
class Arena {
 public:
  Arena(Backend& backend, std::int64_t n_params, ThreadPool& pool)
      : n_(n_params / kPieceElems * kPieceElems),
        memory_(backend.allocate_host(static_cast<std::size_t>(n_ * kBytes), "the arrays of AdamW")) {
    FERRY_CHECK(n_ > 0, kConfig, "{} parameters to update: expected {} or more", n_params, kPieceElems);
    for_each_block(
        pool, [this](std::int64_t at) { std::memset(data() + at, 0, kBlockBytes); }, n_ * kBytes);
  }

  /// Seconds.
  double triad(ThreadPool& pool) {
    const std::int64_t third = n_ * kBytes / 3 / kBlockBytes * kBlockBytes;
    const Stopwatch watch;
    for_each_block(
        pool, [&](std::int64_t at) { add_scaled(data() + at, data() + third + at, data() + 2 * third + at); }, third);
    return static_cast<double>(3 * third) / watch.seconds();
  }

  double in_place(ThreadPool& pool) {
    const Stopwatch watch;
    for_each_block(
        pool, [this](std::int64_t at) { rewrite(data() + at); }, n_ * kBytes);
    return static_cast<double>(2 * n_ * kBytes) / watch.seconds();
  }

  double adamw(const Format& format, SimdLevel level, ThreadPool& pool) {
    const AdamwScalars scalars = adamw_scalars({.rounding = format.rounding}, 1e-4, 1, true);
    const Stopwatch watch;
    for (std::int64_t first = 0; first < n_; first += kPieceElems) {
      adamw_update(range(format, first), scalars, level, pool);
    }
    return static_cast<double>(n_ * format.bytes_per_param()) / watch.seconds();
  }

 private:
  static constexpr std::int64_t kBytes = 14;  // of a parameter: weight, its rest, two f32 moments, gradient

  std::byte* data() const { return static_cast<std::byte*>(memory_.data()); }

  template <class Fn>
  static void for_each_block(ThreadPool& pool, Fn&& fn, std::int64_t size_bytes) {
    pool.parallel_for(size_bytes / kBlockBytes, [&](std::int64_t block) { fn(block * kBlockBytes); });
  }

  static void add_scaled(std::byte* to, const std::byte* from, const std::byte* scaled) {
    const __m128 factor = _mm_set1_ps(0.5F);
    for (std::int64_t i = 0; i < kBlockBytes; i += kVector) {
      const __m128 b = _mm_load_ps(reinterpret_cast<const float*>(from + i));
      const __m128 c = _mm_load_ps(reinterpret_cast<const float*>(scaled + i));
      _mm_stream_ps(reinterpret_cast<float*>(to + i), _mm_add_ps(b, _mm_mul_ps(factor, c)));
    }
    _mm_sfence();
  }

  /// The complement, and thus 0 again after the second pass.
  static void rewrite(std::byte* data) {
    const __m128i ones = _mm_set1_epi32(-1);
    for (std::int64_t i = 0; i < kBlockBytes; i += kVector) {
      auto* const vector = reinterpret_cast<__m128i*>(data + i);
      if (i % kLineBytes == 0) _mm_prefetch(reinterpret_cast<const char*>(vector) + kPrefetchBytes, _MM_HINT_T0);
      _mm_store_si128(vector, _mm_xor_si128(_mm_load_si128(vector), ones));
    }
  }

  AdamwRange range(const Format& format, std::int64_t first) const {
    const auto moment_bytes = static_cast<std::int64_t>(size_of(moment_dtype(DType::kBf16, format.state)));
    const bool has_low = has_weight_low(DType::kBf16, format.state);
    return {.dtype = DType::kBf16,
            .state = format.state,
            .weight = data() + 2 * first,
            .weight_low = has_low ? reinterpret_cast<std::int16_t*>(data() + 2 * n_) + first : nullptr,
            .m = data() + 4 * n_ + moment_bytes * first,
            .v = data() + 8 * n_ + moment_bytes * first,
            .gradient = data() + 12 * n_ + 2 * first,
            .n = kPieceElems,
            .parameter = 0,
            .element = first};
  }

  const std::int64_t n_;
  Buffer memory_;
};

AdamwBenchRow bench_pool(Arena& arena, const PoolPlacement& placement, const AdamwBenchOptions& options) {
  ThreadPool pool(placement);
  AdamwBenchRow row{.n_threads = placement.n_threads, .formats = std::vector<double>(kFormats.size())};
  const auto keep_best = [](double& best, double rate) { best = std::max(best, rate / 1e9); };
  const Stopwatch watch;
  do {
    keep_best(row.triad, arena.triad(pool));
    keep_best(row.in_place, arena.in_place(pool));
    keep_best(row.in_place, arena.in_place(pool));  // the arrays are 0 again
    for (std::size_t i = 0; i < kFormats.size(); ++i) {
      keep_best(row.formats[i], arena.adamw(kFormats.at(i), options.level, pool));
    }
  } while (watch.seconds() < options.seconds_per_row);
  return row;
}

}  // namespace

std::vector<std::string> adamw_bench_formats() {
  std::vector<std::string> names;
  for (const Format& format : kFormats)
    names.push_back(fmt::format("{} ({} B)", format.name, format.bytes_per_param()));
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
  Arena arena(backend, options.n_params, first_touch);
  std::vector<AdamwBenchRow> rows;
  for (const PoolPlacement& placement : options.pools) {
    rows.push_back(bench_pool(arena, placement, options));
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
  for (std::size_t i = 0; i < kFormats.size(); ++i) {
    const auto rate = [i](const AdamwBenchRow& row) { return row.formats[i]; };
    const AdamwBenchRow& best = std::ranges::max(rows, {}, rate);
    lines.push_back(
        fmt::format("{}: {:.1f} GB/s on {} threads, {:.2f} of the fastest pass in place, {:.1f} ms per "
                    "billion parameters",
                    kFormats.at(i).name, rate(best), best.n_threads, rate(best) / in_place,
                    static_cast<double>(kFormats.at(i).bytes_per_param()) / rate(best) * 1e3));
  }
  return lines;
}

}  // namespace ferry
