// SPDX-License-Identifier: Apache-2.0
// `ferry bench adamw` and `ferry bench machine`: host memory, and all that a step needs of a machine.
#include <fmt/core.h>

#include "cli/bench_targets.h"
#include "core/human_units.h"
#include "core/simd.h"
#include "io/atomic_file.h"
#include "io/printable.h"
#include "train/adamw_bench.h"
#include "train/machine_bench.h"
#include "train/rates_file.h"

namespace ferry {

/// One row of the table for `--threads`, else a sweep.
void bench_optimizer(const CommandLine& line) {
  const std::unique_ptr<Backend> backend = bench_backend(line);
  const int numa_node = backend->capabilities().numa_node;
  AdamwBenchOptions options{
      .n_params = line.config.adamw_params, .pools = adamw_bench_pools(numa_node), .level = simd_level()};
  if (line.config.threads > 0) options.pools = {place_pool(static_cast<int>(line.config.threads), numa_node)};
  print_line("AdamW", fmt::format("{} in pieces of 16 MiB, {}; GB/s, and the share of the pass in place",
                                  human_count(static_cast<double>(options.n_params)) + " parameters",
                                  to_string(adamw_path(options.level))));
  print_line(adamw_bench_header());
  const auto rows = bench_adamw(*backend, options, [](const AdamwBenchRow& row) { print_line(to_line(row)); });
  for (const std::string& text : adamw_bench_summary(rows)) print_line(text);
}

void bench_whole_machine(const CommandLine& line) {
  const RunConfig& config = line.config;
  if (!config.rates.empty()) check_writable(config.rates);  // now, not after a minute
  const std::unique_ptr<Backend> backend = bench_backend(line);
  const Capabilities& capabilities = backend->capabilities();
  MachineBenchOptions options;
  options.pool = place_pool(static_cast<int>(config.threads), capabilities.numa_node);
  options.level = simd_level();
  options.n_params = config.adamw_params;
  options.seconds = config.machine_seconds;
  choose_sizes(capabilities.is_device, options);
  print_line("AdamW", fmt::format("{} on {}", to_string(adamw_path(options.level)), options.pool.describe()));
  if (!capabilities.is_device) {
    print_line("copies", "within host memory, by a thread for each direction: they take cores from AdamW");
  }
  print_line("");
  const auto report = [](const std::string& text) { print_line(text); };
  const MachineRates rates = rates_of(bench_machine(*backend, options, report));
  if (config.rates.empty()) return;
  const RatesFile file{.rates = rates,
                       .backend = capabilities.name,
                       .description = capabilities.description,
                       .date = today(),
                       .threads = options.pool.n_threads};
  write_file_atomically(config.rates, to_json(file));
  print_line(fmt::format("\nrates for ferry plan, train and bench step: {}", printable_name(config.rates)));
}

}  // namespace ferry
