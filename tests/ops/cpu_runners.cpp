// SPDX-License-Identifier: Apache-2.0
// Each SIMD level of the CPU table, with exactly the scratch that an op asks for, filled with NaN; the backend.
#include "ops/cpu_runners.h"

#include <cstdlib>
#include <cstring>
#include <memory>

#include "backend/cpu/op_table.h"
#include "ops/backend_runner.h"
#include "ops/op_runners.h"

namespace ferry::test {
namespace {

void run_op(SimdLevel level, int n_threads, const Op& op) {
  check_op(op);
  const cpu::OpTable& table = cpu::op_table(level);
  const std::size_t size = table.scratch_bytes(op);
  const std::size_t rounded = (size + Buffer::kAlignment) / Buffer::kAlignment * Buffer::kAlignment;
  const std::unique_ptr<void, void (*)(void*)> scratch(std::aligned_alloc(Buffer::kAlignment, rounded), std::free);
  std::memset(scratch.get(), 0xff, rounded);
  ThreadPool pool(n_threads);
  table.run(op, {scratch.get(), size}, pool);
}

OpRunner level_runner(SimdLevel level, int n_threads) {
  return {std::string("cpu/") + to_string(level) + "/" + std::to_string(n_threads),
          [level, n_threads](const Op& op) { run_op(level, n_threads, op); }};
}

}  // namespace

std::vector<SimdLevel> simd_levels() {
  std::vector<SimdLevel> levels;
  for (const SimdLevel level : {SimdLevel::kScalar, SimdLevel::kAvx2, SimdLevel::kAvx512}) {
    if (level <= supported_simd_level()) levels.push_back(level);
  }
  return levels;
}

std::vector<OpRunner> op_runners() {
  std::vector<OpRunner> runners;
  for (const SimdLevel level : simd_levels()) runners.push_back(level_runner(level, 2));
  runners.push_back(backend_runner(create_backend("cpu", {.threads = 2})));
  return runners;
}

std::vector<std::vector<OpRunner>> equal_runners() {
  std::vector<std::vector<OpRunner>> groups;
  for (const SimdLevel level : simd_levels()) {
    groups.push_back({level_runner(level, 2), level_runner(level, 1), level_runner(level, 5)});
  }
  return groups;
}

bool is_by_library(const OpRunner&, const char*) { return false; }

}  // namespace ferry::test
