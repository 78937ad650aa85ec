// SPDX-License-Identifier: Apache-2.0
// Runs ops with exactly the scratch that they ask for, filled with NaN.
#include "ops/op_runners.h"

#include <cstring>
#include <memory>

#include "backend/cpu/op_table.h"

namespace ferry::test {
namespace {

void run_on_backend(Backend& backend, Stream& stream, const Op& op) {
  const std::size_t size = backend.scratch_bytes(op);
  Buffer buffer;
  if (size > 0) buffer = backend.allocate_device(size, "test scratch");
  backend.enqueue(&stream, op, {buffer.data(), size});
  backend.sync(&stream);
}

OpRunner backend_runner(const std::string& name) {
  const std::shared_ptr<Backend> backend = create_backend(name, {.threads = 2});
  const std::shared_ptr<Stream> stream = backend->create_stream("test");
  return {name, [backend, stream](const Op& op) { run_on_backend(*backend, *stream, op); }};
}

}  // namespace

std::vector<SimdLevel> simd_levels() {
  std::vector<SimdLevel> levels;
  for (const SimdLevel level : {SimdLevel::kScalar, SimdLevel::kAvx2, SimdLevel::kAvx512}) {
    if (level <= supported_simd_level()) levels.push_back(level);
  }
  return levels;
}

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

const std::vector<OpRunner>& op_runners() {
  static const std::vector<OpRunner> runners = [] {
    std::vector<OpRunner> all;
    for (const SimdLevel level : simd_levels()) {
      all.push_back({std::string("cpu/") + to_string(level), [level](const Op& op) { run_op(level, 2, op); }});
    }
    all.push_back(backend_runner("cpu"));
    return all;
  }();
  return runners;
}

}  // namespace ferry::test
