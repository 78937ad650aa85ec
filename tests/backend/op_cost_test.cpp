// SPDX-License-Identifier: Apache-2.0
#include "backend/op_cost.h"

#include "catch.h"

namespace ferry {
namespace {

float nowhere = 0;  // costs come from shapes: nothing is read

TensorView view(std::initializer_list<std::int64_t> shape, DType dtype = DType::kBf16) {
  return {&nowhere, dtype, shape};
}

}  // namespace

TEST_CASE("a product costs 2 M N K, whatever is transposed") {
  CHECK(op_flop(Matmul{.a = view({3, 5}), .b = view({5, 7}), .c = {}, .d = view({3, 7})}) == 2 * 3 * 5 * 7);
  CHECK(op_flop(Matmul{.a = view({5, 3}), .b = view({5, 7}), .c = {}, .d = view({3, 7}), .transpose_a = true}) ==
        2 * 3 * 5 * 7);
}

TEST_CASE("attention costs what its visible pairs do") {
  AttentionForward forward;
  forward.q = view({2, 3, 4, 8});
  forward.k = view({2, 3, 2, 8});
  CHECK(op_flop(forward) == 4 * 2 * 4 * 8 * 6);
  forward.k = view({2, 5, 2, 8});  // queries see 3, 4 and 5 keys
  CHECK(op_flop(forward) == 4 * 2 * 4 * 8 * 12);
  AttentionBackward backward;
  backward.q = forward.q;
  backward.k = forward.k;
  CHECK(op_flop(backward) == 10 * 2 * 4 * 8 * 12);
}

TEST_CASE("other ops cost the bytes that they read and write") {
  CHECK(op_flop(Fill{.x = view({4})}) == 0);
  CHECK(op_bytes(Cast{.x = view({4, 5}, DType::kF32), .y = view({4, 5})}) == 20 * (4 + 2));
  Rope rope;  // in place
  rope.x = view({1, 2, 3, 4});
  rope.cos = view({2, 2}, DType::kF32);
  rope.sin = view({2, 2}, DType::kF32);
  CHECK(op_bytes(rope) == 2 * 24 * 2 + 2 * 4 * 4);
  CHECK(op_bytes(Fill{.x = view({3}, DType::kI32), .byte = 1}) == 3 * 4);
  SumOfSquares squares;
  squares.x = view({4, 5});
  squares.y = view({1}, DType::kF32);
  CHECK(op_bytes(squares) == 20 * 2 + 4);
  squares.skip = view({4}, DType::kI32);
  CHECK(op_bytes(squares) == 20 * 2 + 4 * 4 + 4);
}

TEST_CASE("d_weight that accumulates is read as well") {
  RmsNormBackward norm;
  norm.d_weight = view({7}, DType::kF32);
  CHECK(op_bytes(norm) == 7 * 4);
  norm.accumulate = true;
  CHECK(op_bytes(norm) == 2 * 7 * 4);
}

TEST_CASE("an embedding costs the rows that it touches, not the table") {
  EmbeddingForward forward;
  forward.ids = view({3}, DType::kI32);
  forward.table = view({1000, 8});
  forward.y = view({3, 8});
  CHECK(op_bytes(forward) == 3 * 4 + 2 * 3 * 8 * 2);
  EmbeddingBackward backward;
  backward.ids = forward.ids;
  backward.order = forward.ids;
  backward.d_y = forward.y;
  backward.d_table = forward.table;
  CHECK(op_bytes(backward) == 2 * 3 * 4 + 3 * 3 * 8 * 2);
}

}  // namespace ferry
