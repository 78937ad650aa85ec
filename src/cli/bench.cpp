// SPDX-License-Identifier: Apache-2.0
// `ferry bench`: measures this machine. `bench ops` times every op beside the machine's own speed.
#include <fmt/core.h>

#include <cstdio>
#include <memory>

#include "backend/backend.h"
#include "backend/op_bench.h"
#include "cli/commands.h"
#include "cli/run_setup.h"
#include "core/simd.h"
#include "core/thread_pool.h"

namespace ferry {
namespace {

void print_line(const std::string& line) {
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

void bench_all_ops(const RunConfig& config) {
  const std::unique_ptr<Backend> backend = create_backend(config.backend, backend_options(config));
  OpBenchOptions options;
  options.threads = config.threads > 0 ? static_cast<int>(config.threads) : available_threads();
  options.level = simd_level();
  print_line(backend->capabilities().name + ": " + backend->capabilities().description);
  print_line(op_bench_header());
  bench_ops(*backend, options, [](const OpBenchRow& row) { print_line(to_line(row)); });
}

}  // namespace

int run_bench(const CommandLine& line) {
  FERRY_ASSERT(line.bench_target == "ops");  // the command line knows no other
  bench_all_ops(line.config);
  return 0;
}

}  // namespace ferry
