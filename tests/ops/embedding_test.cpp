// SPDX-License-Identifier: Apache-2.0
// The embedding ops give the bits of the host's gather and scatter-add, which the offload engine uses in their place.
#include "catch.h"
#include "core/rng.h"
#include "core/thread_pool.h"
#include "ops/bound_op.h"
#include "ops/op_runners.h"
#include "optim/embedding_rows.h"

namespace ferry::test {
namespace {

constexpr std::int64_t kVocabulary = 50;

/// n ids, few enough rows that some occur often and some not at all; the order in which their gradients are summed.
Tensors id_tensors(std::int64_t n) {
  const CounterRng rng(3, "ids");
  TestTensor ids(DType::kI32, {n});
  TestTensor order(DType::kI32, {n});
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint32_t bits = rng.bits(static_cast<std::uint64_t>(i));
    ids.view().as<std::int32_t>()[i] = static_cast<std::int32_t>(bits % 3 == 0 ? 7 : bits % kVocabulary);
  }
  const auto count = static_cast<std::size_t>(n);
  sort_positions({ids.view().as<std::int32_t>(), count}, {order.view().as<std::int32_t>(), count});
  return {{"ids", ids}, {"order", order}};
}

std::span<const std::int32_t> span_of(const TestTensor& tensor) {
  return {tensor.view().as<std::int32_t>(), static_cast<std::size_t>(tensor.view().elems())};
}

void check_embedding(const OpRunner& runner, DType dtype, std::int64_t n, std::int64_t width, Placement placement) {
  INFO(runner.name << " " << to_string(dtype) << " " << n << " x " << width << " " << to_string(placement));
  ThreadPool pool(1);
  Tensors t = id_tensors(n);
  t["table"] = random_tensor(dtype, {kVocabulary, width}, "table", 1, placement);
  t["d_y"] = random_tensor(dtype, {n, width}, "d_y", 1, placement);
  t["d_table"] = random_tensor(dtype, {kVocabulary, width}, "d_table", 1, placement);
  t["y"] = TestTensor(dtype, {n, width}, placement);
  const TestTensor want_y(dtype, {n, width});
  const TestTensor want_d_table = random_tensor(dtype, {kVocabulary, width}, "d_table");
  gather_rows(dtype, t["table"].view().data, width, span_of(t["ids"]), want_y.view().data, pool);
  scatter_add_rows(dtype, span_of(t["ids"]), span_of(t["order"]), t["d_y"].view().data, width, 0, kVocabulary,
                   want_d_table.view().data, pool);
  EmbeddingForward forward;
  bind_tensors(forward, t);
  runner.run(forward);
  EmbeddingBackward backward;
  bind_tensors(backward, t);
  runner.run(backward);
  CHECK(same_bits(t["y"], want_y));
  CHECK(same_bits(t["d_table"], want_d_table));
}

}  // namespace

TEST_CASE("embedding ops give the host's bits", FERRY_OP_TAGS) {
  for (const OpRunner& runner : op_runners()) {
    for (const DType dtype : {DType::kF32, DType::kBf16}) {
      for (const std::int64_t n : {1, 40, 1300}) {
        for (const std::int64_t width : {1, 7, 24, 1032}) {
          for (const Placement placement : {Placement::kAligned, Placement::kOffset}) {
            check_embedding(runner, dtype, n, width, placement);
          }
        }
      }
    }
  }
}

}  // namespace ferry::test
