// SPDX-License-Identifier: Apache-2.0
// Ops allocate nothing once their threads have seen the largest piece. The linker hands this file every allocation
// that ferry's and Eigen's code makes (--wrap in CMakeLists.txt).
#include <atomic>
#include <cstdlib>

#include "backend/cpu/op_table.h"
#include "catch.h"
#include "core/thread_pool.h"
#include "ops/bound_op.h"
#include "ops/cpu_runners.h"

namespace {
std::atomic<int> n_allocations = 0;
}  // namespace

extern "C" {
void* __real_malloc(std::size_t size);
void* __real__Znwm(std::size_t size);
void* __real_aligned_alloc(std::size_t alignment, std::size_t size);
void* __wrap_malloc(std::size_t size) {
  ++n_allocations;
  return __real_malloc(size);
}
void* __wrap__Znwm(std::size_t size) {
  ++n_allocations;
  return __real__Znwm(size);
}
void* __wrap_aligned_alloc(std::size_t alignment, std::size_t size) {
  ++n_allocations;
  return __real_aligned_alloc(alignment, size);
}
}

namespace ferry::test {
namespace {

/// Allocations of a second run.
int allocations(SimdLevel level, const Op& op, ThreadPool& pool) {
  const cpu::OpTable& table = cpu::op_table(level);
  const std::size_t size = table.scratch_bytes(op);
  std::vector<std::byte> scratch(size + Buffer::kAlignment);
  for (int i = 0; i < 20; ++i) table.run(op, {scratch.data(), size}, pool);  // until every thread has had a piece
  n_allocations = 0;
  table.run(op, {scratch.data(), size}, pool);
  return n_allocations;
}

}  // namespace

TEST_CASE("large ops allocate nothing when they run again") {
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    const Tensors product = {{"a", random_tensor(dtype, {700, 900}, "a")},
                             {"b", random_tensor(dtype, {900, 800}, "b")},
                             {"d", TestTensor(dtype, {700, 800})}};
    const Tensors transposed = {{"a", random_tensor(dtype, {900, 700}, "a")},
                                {"b", random_tensor(dtype, {800, 900}, "b")},
                                {"d", TestTensor(dtype, {700, 800})}};
    const Tensors row = {{"a", random_tensor(dtype, {1, 900}, "a")},
                         {"b", random_tensor(dtype, {900, 800}, "b")},
                         {"d", TestTensor(dtype, {1, 800})}};
    const Tensors attention = {{"q", random_tensor(dtype, {1, 600, 2, 96}, "q")},
                               {"k", random_tensor(dtype, {1, 600, 2, 96}, "k")},
                               {"v", random_tensor(dtype, {1, 600, 2, 96}, "v")},
                               {"o", random_tensor(dtype, {1, 600, 2, 96}, "o")},
                               {"lse", random_tensor(DType::kF32, {1, 2, 600}, "l")},
                               {"d_o", random_tensor(dtype, {1, 600, 2, 96}, "do")},
                               {"d_q", TestTensor(dtype, {1, 600, 2, 96})},
                               {"d_k", TestTensor(dtype, {1, 600, 2, 96})},
                               {"d_v", TestTensor(dtype, {1, 600, 2, 96})}};
    const Tensors norm = {
        {"d_y", random_tensor(dtype, {700, 300}, "dy")}, {"x", random_tensor(dtype, {700, 300}, "x")},
        {"weight", random_tensor(dtype, {300}, "w")},    {"rstd", random_tensor(DType::kF32, {700}, "r")},
        {"d_x", TestTensor(dtype, {700, 300})},          {"d_weight", TestTensor(dtype, {300})}};
    Matmul plain;
    bind_tensors(plain, product);
    Matmul turned;
    turned.transpose_a = turned.transpose_b = true;
    bind_tensors(turned, transposed);
    Matmul vector;
    bind_tensors(vector, row);
    AttentionForward forward;
    bind_tensors(forward, attention);
    AttentionBackward backward;
    bind_tensors(backward, attention);
    RmsNormBackward norm_backward;
    bind_tensors(norm_backward, norm);
    ThreadPool pool(2);
    for (const SimdLevel level : simd_levels()) {
      for (const Op& op : {Op(plain), Op(turned), Op(vector), Op(forward), Op(backward), Op(norm_backward)}) {
        INFO(op_name(op) << " " << to_string(dtype) << " " << to_string(level));
        CHECK(allocations(level, op, pool) == 0);
      }
    }
  }
}

}  // namespace ferry::test
