// SPDX-License-Identifier: Apache-2.0
// One test per kind of refusal of check_op.

#include <cstdint>
#include <utility>

#include "backend/ops.h"
#include "catch.h"
#include "thrown.h"

using namespace ferry;

namespace {

/// Views of separate memory that is never touched.
class Memory {
 public:
  TensorView make(DType dtype, std::initializer_list<std::int64_t> shape) {
    TensorView view(reinterpret_cast<void*>(next_), dtype, shape);
    next_ += (view.size_bytes() + 4095) / 4096 * 4096;
    return view;
  }
  TensorView f32(std::initializer_list<std::int64_t> shape) { return make(DType::kF32, shape); }
  TensorView bf16(std::initializer_list<std::int64_t> shape) { return make(DType::kBf16, shape); }
  TensorView i32(std::initializer_list<std::int64_t> shape) { return make(DType::kI32, shape); }

 private:
  std::uintptr_t next_ = 4096;
};

std::string refusal(const Op& op) {
  return thrown([&] { check_op(op); });
}

RmsNormForward rmsnorm(Memory& memory) {
  return {memory.bf16({4, 128}), {}, {}, memory.bf16({128}), memory.bf16({4, 128}), memory.f32({4}), 1e-5F};
}

RmsNormBackward rmsnorm_backward(Memory& memory) {
  RmsNormBackward op;
  op.d_y = memory.bf16({4, 128});
  op.x = memory.bf16({4, 128});
  op.weight = memory.bf16({128});
  op.rstd = memory.f32({4});
  op.d_x = memory.bf16({4, 128});
  op.d_weight = memory.bf16({128});
  return op;
}

Matmul matmul(Memory& memory) {
  return {memory.bf16({4, 8}), memory.bf16({8, 6}), {}, memory.bf16({4, 6}), false, false};
}

/// q, k and v as parts of one (B, T, H + 2G, D) buffer, as the model has them.
AttentionBackward attention(Memory& memory) {
  AttentionBackward op;
  const auto part = [](TensorView qkv, std::int64_t begin, std::int64_t heads) {
    qkv.data = static_cast<std::byte*>(qkv.data) + begin * qkv.stride[2] * 2;
    qkv.shape[2] = heads;
    return qkv;
  };
  const TensorView qkv = memory.bf16({2, 5, 8, 16}), d_qkv = memory.bf16({2, 5, 8, 16});
  op.q = part(qkv, 0, 4);
  op.k = part(qkv, 4, 2);
  op.v = part(qkv, 6, 2);
  op.o = memory.bf16({2, 5, 4, 16});
  op.lse = memory.f32({2, 4, 5});
  op.d_o = memory.bf16({2, 5, 4, 16});
  op.d_q = part(d_qkv, 0, 4);
  op.d_k = part(d_qkv, 4, 2);
  op.d_v = part(d_qkv, 6, 2);
  return op;
}

AttentionForward attention_forward(Memory& memory) {
  const AttentionBackward op = attention(memory);
  return {op.q, op.k, op.v, op.o, op.lse, 1};
}

CrossEntropyChunk cross_entropy(Memory& memory) {
  return {memory.bf16({4, 10}), memory.i32({4}), memory.f32({4}), memory.f32({4}), 0};
}

SwigluBackward swiglu_backward(Memory& memory) {
  const TensorView gate_up = memory.bf16({4, 20}), d_gate_up = memory.bf16({4, 20});
  return {memory.bf16({4, 10}),     gate_up.columns(0, 10),    gate_up.columns(10, 10),
          d_gate_up.columns(0, 10), d_gate_up.columns(10, 10), {}};
}

Adamw adamw(Memory& memory) {
  return {memory.bf16({9}), memory.make(DType::kI16, {9}), memory.f32({9}), memory.f32({9}), memory.bf16({9}), {}};
}

}  // namespace

TEST_CASE("well-formed ops pass, one of each kind") {
  Memory memory;
  const TensorView table = memory.f32({50, 8}), ids = memory.i32({4}), rows = memory.f32({4, 8});
  CHECK(refusal(EmbeddingForward{ids, table, rows}).empty());
  CHECK(refusal(EmbeddingBackward{ids, memory.i32({4}), rows, table}).empty());
  CHECK(refusal(rmsnorm(memory)).empty());
  CHECK(refusal(rmsnorm_backward(memory)).empty());
  CHECK(refusal(matmul(memory)).empty());
  CHECK(refusal(Rope{memory.bf16({2, 5, 3, 8}), memory.f32({5, 4}), memory.f32({5, 4}), false}).empty());
  CHECK(refusal(attention_forward(memory)).empty());
  CHECK(refusal(attention(memory)).empty());
  CHECK(refusal(SwigluForward{rows, memory.f32({4, 8}), memory.f32({4, 8})}).empty());
  CHECK(refusal(swiglu_backward(memory)).empty());
  CHECK(refusal(cross_entropy(memory)).empty());
  CHECK(refusal(CrossEntropyLoss{ids, memory.f32({4}), memory.f32({4}), memory.f32({1}), 1}).empty());
  CHECK(refusal(CrossEntropyBackward{rows, ids, memory.f32({4}), 8, 1}).empty());
  CHECK(refusal(Cast{rows, memory.bf16({4, 8})}).empty());
  CHECK(refusal(Fill{ids}).empty());
  CHECK(refusal(SumOfSquares{rows, {}, memory.f32({1})}).empty());
  CHECK(refusal(adamw(memory)).empty());
}

TEST_CASE("ops have names") {
  CHECK(std::string(op_name(RmsNormForward{})) == "rmsnorm_forward");
  CHECK(std::string(op_name(Adamw{})) == "adamw");
}

TEST_CASE("a missing tensor is named with what is expected") {
  Memory memory;
  auto op = rmsnorm(memory);
  op.weight = {};
  CHECK(refusal(op) == "shape: rmsnorm_forward: weight is missing, expected bf16 (128)");
  op = rmsnorm(memory);
  op.x.data = nullptr;
  CHECK(refusal(op) == "shape: rmsnorm_forward: x is missing, expected bf16 or f32 (N, C)");
}

TEST_CASE("a wrong dtype is named with what is expected") {
  Memory memory;
  auto op = rmsnorm(memory);
  op.weight = memory.f32({64});
  CHECK(refusal(op) == "dtype: rmsnorm_forward: weight is f32 (64), expected bf16 (128)");
  op.x = memory.i32({4, 128});
  CHECK(refusal(op) == "dtype: rmsnorm_forward: x is i32 (4, 128), expected bf16 or f32 (N, C)");
  const EmbeddingForward embedding{memory.f32({4}), memory.f32({50, 8}), memory.f32({4, 8})};
  CHECK(refusal(embedding) == "dtype: embedding_forward: ids is f32 (4), expected i32 (N)");
  CHECK(refusal(Cast{memory.i32({4}), memory.f32({4})}) == "dtype: cast: x is i32 (4), expected bf16 or f32");
}

TEST_CASE("a wrong shape is named with what is expected") {
  Memory memory;
  auto op = rmsnorm(memory);
  op.rstd = memory.f32({5});
  CHECK(refusal(op) == "shape: rmsnorm_forward: rstd is f32 (5), expected f32 (4)");
  op.x = memory.bf16({128});
  CHECK(refusal(op) == "shape: rmsnorm_forward: x is bf16 (128), expected bf16 or f32 (N, C)");
  CHECK(refusal(Cast{memory.f32({2, 3}), memory.bf16({3, 2})}) ==
        "shape: cast: y is bf16 (3, 2), expected bf16 (2, 3)");
  const EmbeddingForward embedding{memory.i32({4, 1}), memory.f32({50, 8}), memory.f32({4, 8})};
  CHECK(refusal(embedding) == "shape: embedding_forward: ids is i32 (4, 1), expected i32 (N)");
}

TEST_CASE("empty tensors are refused") {
  Memory memory;
  auto op = rmsnorm(memory);
  op.x = op.x.rows(0, 0);
  CHECK(refusal(op) ==
        "shape: rmsnorm_forward: x is bf16 (0, 128), expected bf16 or f32 (N, C) with every extent 1 or more");
  CHECK(refusal(Fill{memory.f32({4}).rows(0, 0)}) ==
        "shape: fill: x is f32 (0), expected a tensor with every extent 1 or more");
}

TEST_CASE("a tensor without dimensions is refused") {
  Memory memory;
  CHECK(refusal(Fill{memory.f32({})}) == "shape: fill: x has no dimensions, expected 1 or more");
}

TEST_CASE("gaps between rows are refused where a view is contiguous, taken where it is strided") {
  Memory memory;
  auto norm = rmsnorm(memory);
  norm.x = memory.bf16({4, 256}).columns(0, 128);
  CHECK(refusal(norm) ==
        "shape: rmsnorm_forward: x is bf16 (4, 128) with strides (256, 1), expected a contiguous view");
  auto product = matmul(memory);
  product.a = memory.bf16({4, 20}).columns(3, 8);
  CHECK(refusal(product).empty());
}

TEST_CASE("strided views keep a contiguous last dimension and separate rows") {
  Memory memory;
  auto op = matmul(memory);
  op.a = memory.bf16({8, 4});
  std::swap(op.a.shape[0], op.a.shape[1]);
  std::swap(op.a.stride[0], op.a.stride[1]);
  CHECK(refusal(op) == "shape: matmul: a is bf16 (4, 8) with strides (1, 4), expected a contiguous last dimension");
  op = matmul(memory);
  op.a.stride[0] = 7;
  CHECK(refusal(op) == "shape: matmul: a is bf16 (4, 8) with strides (7, 1), expected rows that do not overlap");
}

TEST_CASE("rmsnorm takes addend and sum together only") {
  Memory memory;
  auto op = rmsnorm(memory);
  op.addend = memory.bf16({4, 128});
  CHECK(refusal(op) == "shape: rmsnorm_forward: sum is absent, expected addend and sum both or neither");
  op.sum = op.addend;
  CHECK(refusal(op).empty());
}

TEST_CASE("rmsnorm writes d_weight in its own dtype or f32, and accumulates in f32 alone") {
  Memory memory;
  auto op = rmsnorm_backward(memory);
  op.accumulate = true;
  CHECK(refusal(op) == "dtype: rmsnorm_backward: d_weight is bf16 (128), expected f32 where it accumulates");
  op.d_weight = memory.f32({128});
  CHECK(refusal(op).empty());
  op.accumulate = false;
  CHECK(refusal(op).empty());
  op.d_weight = memory.f32({127});
  CHECK(refusal(op) == "shape: rmsnorm_backward: d_weight is f32 (127), expected f32 (128)");
  op.d_weight = memory.i32({128});
  CHECK(refusal(op) == "dtype: rmsnorm_backward: d_weight is i32 (128), expected bf16 (128)");
  op.d_weight = {};
  CHECK(refusal(op) == "shape: rmsnorm_backward: d_weight is missing, expected bf16 (128)");
  op.d_weight = op.weight;
  CHECK(refusal(op) == "shape: rmsnorm_backward: d_weight overlaps weight, expected separate memory");
}

TEST_CASE("rmsnorm of f32 has d_weight in f32 alone") {
  Memory memory;
  auto op = rmsnorm_backward(memory);
  op.d_y = op.d_x = memory.f32({4, 128});
  op.x = memory.f32({4, 128});
  op.weight = memory.f32({128});
  CHECK(refusal(op) == "dtype: rmsnorm_backward: d_weight is bf16 (128), expected f32 (128)");
}

TEST_CASE("a sum of squares skips rows of a matrix") {
  Memory memory;
  SumOfSquares op{memory.bf16({6, 8}), memory.i32({6}), memory.f32({1})};
  CHECK(refusal(op).empty());
  op.skip = memory.i32({8});
  CHECK(refusal(op) == "shape: sum_of_squares: skip is i32 (8), expected i32 (6)");
  op.skip = memory.f32({6});
  CHECK(refusal(op) == "dtype: sum_of_squares: skip is f32 (6), expected i32 (6)");
  op.skip = memory.i32({6});
  op.x = memory.bf16({48});
  CHECK(refusal(op) == "shape: sum_of_squares: x is bf16 (48), expected bf16 or f32 (R, C)");
  op.skip = {};
  CHECK(refusal(op).empty());
}

TEST_CASE("matmul checks the inner extent under every transposition") {
  Memory memory;
  auto op = matmul(memory);
  op.transpose_b = true;
  CHECK(refusal(op) == "shape: matmul: b is bf16 (8, 6), expected bf16 (8, 8)");
  op.b = memory.bf16({6, 8});
  CHECK(refusal(op).empty());
  op.transpose_a = true;
  CHECK(refusal(op) == "shape: matmul: b is bf16 (6, 8), expected bf16 (6, 4)");
  op.a = memory.bf16({8, 4});
  CHECK(refusal(op).empty());
}

TEST_CASE("matmul writes its own dtype or f32, and accumulates in what it writes") {
  Memory memory;
  auto op = matmul(memory);
  op.d = memory.f32({4, 6});
  CHECK(refusal(op).empty());
  op.c = memory.bf16({4, 6});
  CHECK(refusal(op) == "dtype: matmul: c is bf16 (4, 6), expected f32 (4, 6)");
  op = matmul(memory);
  op.a = memory.f32({4, 8});
  op.b = memory.f32({8, 6});
  CHECK(refusal(op) == "dtype: matmul: d is bf16 (4, 6), expected f32 (4, 6)");
}

TEST_CASE("what an op writes overlaps nothing else") {
  Memory memory;
  auto op = matmul(memory);
  op.a = memory.bf16({4, 6});
  op.b = memory.bf16({6, 6});
  op.d = op.a;
  CHECK(refusal(op) == "shape: matmul: d overlaps a, expected separate memory");
  auto entropy = cross_entropy(memory);
  entropy.target_logit = entropy.lse;
  CHECK(refusal(entropy) == "shape: cross_entropy_chunk: target_logit overlaps lse, expected separate memory");
  auto backward = attention(memory);
  backward.d_v = backward.d_k;
  CHECK(refusal(backward) == "shape: attention_backward: d_v overlaps d_k, expected separate memory");
}

TEST_CASE("where an output may be an input, it is the same view") {
  Memory memory;
  auto op = matmul(memory);
  op.c = op.d;
  CHECK(refusal(op).empty());
  const TensorView both = memory.bf16({5, 6});
  op.c = both.rows(0, 4);
  op.d = both.rows(1, 4);
  CHECK(refusal(op) == "shape: matmul: d overlaps c in part, expected the same view or separate memory");
  auto norm = rmsnorm(memory);
  norm.y = norm.x;
  CHECK(refusal(norm).empty());
  auto swiglu = swiglu_backward(memory);
  swiglu.d_gate = swiglu.gate;
  swiglu.d_up = swiglu.up;
  CHECK(refusal(swiglu).empty());
  swiglu.y = swiglu.d_y;
  CHECK(refusal(swiglu).empty());
  std::swap(swiglu.d_gate, swiglu.d_up);
  CHECK(refusal(swiglu) == "shape: swiglu_backward: d_gate overlaps up, expected separate memory");
}

TEST_CASE("rope needs an even head width") {
  Memory memory;
  const Rope op{memory.bf16({2, 5, 3, 7}), memory.f32({5, 3}), memory.f32({5, 3}), false};
  CHECK(refusal(op) == "shape: rope: x is bf16 (2, 5, 3, 7), expected an even last extent");
}

TEST_CASE("attention checks heads and positions of k against q") {
  Memory memory;
  auto op = attention_forward(memory);
  op.k = op.v = memory.bf16({2, 5, 3, 16});
  CHECK(refusal(op) ==
        "shape: attention_forward: k is bf16 (2, 5, 3, 16), expected a number of heads that divides the one of q");
  op.k = op.v = memory.bf16({2, 4, 2, 16});
  CHECK(refusal(op) == "shape: attention_forward: k is bf16 (2, 4, 2, 16), expected at least as many positions as q");
  op.k = memory.bf16({2, 9, 2, 16});
  CHECK(refusal(op) == "shape: attention_forward: v is bf16 (2, 4, 2, 16), expected bf16 (2, 9, 2, 16)");
}

TEST_CASE("a vocabulary chunk does not begin before the first token") {
  Memory memory;
  auto op = cross_entropy(memory);
  op.first_token = -1;
  CHECK(refusal(op) == "shape: cross_entropy_chunk: first_token is -1, expected 0 or more");
}

TEST_CASE("adamw takes the state formats of its contract only") {
  Memory memory;
  auto op = adamw(memory);
  op.weight_low = {};
  CHECK(refusal(op) == "dtype: adamw: m is f32 (9), expected bf16 (9)");
  op.m = memory.bf16({9});
  op.v = memory.bf16({9});
  CHECK(refusal(op).empty());
  op.weight_low = memory.make(DType::kI16, {9});
  CHECK(refusal(op).empty());
  op.v = memory.f32({9});
  CHECK(refusal(op) == "dtype: adamw: v is f32 (9), expected bf16 (9)");
  op = adamw(memory);
  op.weight = memory.f32({9});
  CHECK(refusal(op) == "shape: adamw: weight_low is i16 (9), expected none beside f32 weights");
}
