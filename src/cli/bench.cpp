// SPDX-License-Identifier: Apache-2.0
// `ferry bench`: measures this machine. `ops` times every op beside the machine's own speed, `step` training steps,
// `floor` the products and attention of a step, `adamw` the optimizer's way through host memory, `machine` what plans
// are made by.
#include <fmt/core.h>

#include <cstdio>

#include "cli/bench_targets.h"
#include "cli/commands.h"
#include "cli/output_files.h"
#include "cli/run_setup.h"
#include "core/error.h"

namespace ferry {

void print_line(const std::string& line) {
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

void print_line(const char* label, const std::string& text) { print_line(fmt::format("{:<9} {}", label, text)); }

ModelConfig bench_model(const CommandLine& line) {
  FERRY_CHECK(!line.config.model.empty() || !line.config.init_from.empty(), kConfig,
              "ferry bench {}: no model in '{}': set model (a preset, a Hugging Face folder or a config.json)",
              line.bench_target, line.config_source);
  return model_of(line.config);
}

std::unique_ptr<Backend> bench_backend(const CommandLine& line) {
  auto backend = create_backend(line.config.backend, backend_options(line.config));
  print_line("backend", backend->capabilities().name + ": " + backend->capabilities().description);
  return backend;
}

int run_bench(const CommandLine& line) {
  check_output_files(line);
  if (line.bench_target == "ops") {
    bench_all_ops(line);
  } else if (line.bench_target == "step") {
    bench_training_steps(line);
  } else if (line.bench_target == "adamw") {
    bench_optimizer(line);
  } else if (line.bench_target == "machine") {
    bench_whole_machine(line);
  } else {
    FERRY_ASSERT(line.bench_target == "floor");  // the command line knows no other
    bench_floor(line);
  }
  return 0;
}

}  // namespace ferry
