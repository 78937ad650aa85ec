// SPDX-License-Identifier: Apache-2.0
#include "train/machine_bench.h"

#include <algorithm>

#include "catch.h"
#include "train/tiny_run.h"

namespace ferry {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

MachineBenchOptions small_options() {
  MachineBenchOptions options;
  options.model = test::byte_config();
  options.step.batch_size = 2;
  options.step.seq_len = 16;
  options.pool = {.n_threads = 2, .cpus = {}};
  options.level = simd_level();
  options.n_params = std::int64_t{8} << 20;
  options.piece_bytes = {kMiB, 16 * kMiB};
  options.slab_bytes = 32 * kMiB;
  options.seconds = 0;
  return options;
}

}  // namespace

TEST_CASE("every rate of the machine is measured, in lines of equal columns") {
  const auto backend = create_backend("cpu", {.threads = 2});
  std::vector<std::string> lines;
  const MachineBenchResult result =
      bench_machine(*backend, small_options(), [&](const std::string& line) { lines.push_back(line); });
  REQUIRE(result.copies.size() == 2);
  for (const CopyRates& rates : result.copies) {
    for (const double rate : {rates.h2d, rates.d2h, rates.h2d_both, rates.d2h_both}) CHECK(rate > 0);
  }
  const auto is_positive = [](double rate) { return rate > 0; };
  CHECK(std::ranges::all_of(result.alone.passes, is_positive));
  CHECK(std::ranges::all_of(result.beside_copies.passes, is_positive));
  CHECK(std::ranges::count(result.alone.copies, 0) == HostPasses::kCount);
  CHECK(std::ranges::any_of(result.beside_copies.copies, is_positive));
  for (const double rate : {result.step_flop_s, result.products_flop_s, result.attention_forward_flop_s,
                            result.attention_backward_flop_s, result.device_bytes_s}) {
    CHECK(rate > 0);
  }
  REQUIRE(lines.size() == 15);
  for (int i = 1; i < 3; ++i) CHECK(lines[i].size() == lines[0].size());
  for (int i = 5; i < 9; ++i) CHECK(lines[i].size() == lines[4].size());
  CHECK(backend->device_bytes() == 0);
  CHECK(backend->host_bytes() == 0);
}

TEST_CASE("plans go by the engine's pieces and the mean of AdamW's formats") {
  MachineBenchResult result;
  result.copies = {{.piece_bytes = kMiB, .h2d = 1e9, .d2h = 2e9, .h2d_both = 3e9, .d2h_both = 4e9},
                   {.piece_bytes = 16 * kMiB, .h2d = 50e9, .d2h = 51e9, .h2d_both = 40e9, .d2h_both = 41e9}};
  result.alone.passes = {1, 2, 100e9, 110e9, 120e9, 130e9};
  result.beside_copies.passes = {1, 2, 80e9, 90e9, 90e9, 100e9};
  result.beside_copies.copies = {1, 2, 60e9, 50e9, 60e9, 70e9};
  result.step_flop_s = 1;
  result.products_flop_s = 700e12;
  result.attention_forward_flop_s = 400e12;
  result.attention_backward_flop_s = 300e12;
  result.device_bytes_s = 4e12;
  CHECK(rates_of(result) == MachineRates{.products_flop_s = 700e12,
                                         .attention_forward_flop_s = 400e12,
                                         .attention_backward_flop_s = 300e12,
                                         .device_bytes_s = 4e12,
                                         .h2d_bytes_s = 50e9,
                                         .h2d_both_bytes_s = 40e9,
                                         .d2h_both_bytes_s = 41e9,
                                         .adamw_bytes_s = 115e9,
                                         .host_bytes_s = 150e9});
}

TEST_CASE("a device runs the step of a 1B model, the CPU that of the default config") {
  MachineBenchOptions options;
  choose_sizes(true, options);
  CHECK(options.model.n_layers == 16);
  CHECK(options.step.batch_size * options.step.seq_len == 8192);
  CHECK(options.step.dtype == DType::kBf16);
  choose_sizes(false, options);
  CHECK(options.model.hidden_size == 128);
  CHECK(options.step.batch_size * options.step.seq_len == 512);
  CHECK(options.step.dtype == DType::kF32);
}

}  // namespace ferry
