// SPDX-License-Identifier: Apache-2.0
// Shapes that cross every tile, block and piece of the ops, against f64 references.
#include <cmath>

#include "catch.h"
#include "ops/bound_op.h"
#include "ops/op_runners.h"
#include "ops/reference.h"

namespace ferry::test {
namespace {

constexpr DType kBoth[] = {DType::kF32, DType::kBf16};

/// c beside d, or in its place.
void check_matmul(const std::vector<OpRunner>& runners, const ProductShape& shape, DType dtype, DType d_dtype,
                  bool in_place) {
  INFO(shape.rows << " x " << shape.columns << " x " << shape.depth << " " << to_string(dtype) << " -> "
                  << to_string(d_dtype) << (shape.transpose_a ? " ta" : "") << (shape.transpose_b ? " tb" : ""));
  using Shape = std::vector<std::int64_t>;
  const Shape a = shape.transpose_a ? Shape{shape.depth, shape.rows} : Shape{shape.rows, shape.depth};
  const Shape b = shape.transpose_b ? Shape{shape.columns, shape.depth} : Shape{shape.depth, shape.columns};
  const Tensors inputs = {{"a", random_tensor(dtype, a, "a", 0.1, Placement::kStrided)},
                          {"b", random_tensor(dtype, b, "b", 1, Placement::kStrided)}};
  const TestTensor c = random_tensor(d_dtype, {shape.rows, shape.columns}, "c", 1, Placement::kOffset);
  Values want = product_reference(shape, inputs.at("a").values(), inputs.at("b").values());
  const Values addend = c.values();
  for (std::size_t i = 0; i < want.size(); ++i) want[i] += addend[i];
  for (const OpRunner& runner : runners) {
    INFO(runner.name);
    TestTensor d(d_dtype, {shape.rows, shape.columns}, Placement::kStrided);
    if (in_place) d.set(addend);
    Matmul op;
    op.transpose_a = shape.transpose_a;
    op.transpose_b = shape.transpose_b;
    bind_tensors(op, inputs);
    op.c = in_place ? d.view() : c.view();
    op.d = d.view();
    runner.run(op);
    CHECK(difference(runner.name, Matmul::kName, d, want) == "");
    CHECK(d.surroundings_untouched());
  }
}

}  // namespace

TEST_CASE("matrix products across tiles match f64, beside and into their addend", FERRY_OP_TAGS) {
  const std::vector<OpRunner> runners = op_runners();
  for (const bool in_place : {false, true}) {
    for (const bool transpose_a : {false, true}) {
      for (const bool transpose_b : {false, true}) {
        check_matmul(runners, {261, 129, 1030, transpose_a, transpose_b}, DType::kBf16, DType::kBf16, in_place);
        check_matmul(runners, {70, 403, 515, transpose_a, transpose_b}, DType::kBf16, DType::kF32, in_place);
        check_matmul(runners, {129, 403, 257, transpose_a, transpose_b}, DType::kF32, DType::kF32, in_place);
      }
    }
  }
}

TEST_CASE("products with an extent of 1 match f64", FERRY_OP_TAGS) {
  const std::vector<OpRunner> runners = op_runners();
  for (const DType dtype : kBoth) {
    for (const std::int64_t large : {3, 17, 1025}) {
      check_matmul(runners, {1, large, large, false, true}, dtype, dtype, false);
      check_matmul(runners, {large, 1, large, true, false}, dtype, dtype, true);
      check_matmul(runners, {large, large, 1, false, false}, dtype, DType::kF32, true);
    }
  }
}

namespace {

void check_attention(const std::vector<OpRunner>& runners, const AttentionShape& shape, DType dtype,
                     Placement keys_placement = Placement::kAligned) {
  const std::vector<std::int64_t> queries = {shape.batch, shape.length, shape.n_heads, shape.head_dim};
  const std::vector<std::int64_t> keys = {shape.batch, shape.n_keys, shape.n_kv_heads, shape.head_dim};
  Tensors t = {{"q", random_tensor(dtype, queries, "q", 2)},
               {"k", random_tensor(dtype, keys, "k", 1, keys_placement)},
               {"v", random_tensor(dtype, keys, "v", 1, keys_placement)},
               {"o", TestTensor(dtype, queries)},
               {"lse", TestTensor(DType::kF32, {shape.batch, shape.n_heads, shape.length})}};
  const AttentionOutput want = attention_reference(shape, t["q"].values(), t["k"].values(), t["v"].values());
  for (const OpRunner& runner : runners) {
    INFO(runner.name << " " << to_string(dtype) << " " << shape.head_dim);
    AttentionForward forward;
    forward.scale = static_cast<float>(shape.scale);
    bind_tensors(forward, t);
    runner.run(forward);
    CHECK(difference(runner.name, AttentionForward::kName, t["o"], want.o) == "");
    CHECK(difference(runner.name, AttentionForward::kName, t["lse"], want.lse) == "");
  }
}

}  // namespace

TEST_CASE("attention across query tiles and key blocks matches f64", FERRY_OP_TAGS) {
  const std::vector<OpRunner> runners = op_runners();
  for (const DType dtype : kBoth) {
    check_attention(runners, {1, 131, 650, 2, 1, 20, 0.25}, dtype);
    check_attention(runners, {2, 300, 300, 4, 2, 64, 0.125}, dtype);
  }
}

TEST_CASE("one or a few queries at the end of many keys, as a cache holds them, match f64", FERRY_OP_TAGS) {
  const std::vector<OpRunner> runners = op_runners();
  for (const DType dtype : kBoth) {
    check_attention(runners, {1, 1, 1, 4, 2, 64, 0.125}, dtype, Placement::kStrided);
    check_attention(runners, {1, 1, 33, 8, 2, 64, 0.125}, dtype, Placement::kStrided);
    check_attention(runners, {1, 1, 1537, 4, 4, 128, 0.09}, dtype, Placement::kStrided);
    check_attention(runners, {2, 5, 513, 6, 2, 8, 0.35}, dtype, Placement::kStrided);
    check_attention(runners, {1, 64, 1000, 2, 1, 64, 0.125}, dtype, Placement::kStrided);
  }
}

TEST_CASE("attention gradients sum to the derivative along a direction across tiles", FERRY_OP_TAGS) {
  // One directional derivative covers every element of d_q, d_k and d_v at the cost of two forwards.
  const AttentionShape shape = {1, 131, 650, 2, 1, 20, 0.25};
  Tensors t = {{"q", random_tensor(DType::kF32, {1, 131, 2, 20}, "q")},
               {"k", random_tensor(DType::kF32, {1, 650, 1, 20}, "k")},
               {"v", random_tensor(DType::kF32, {1, 650, 1, 20}, "v")},
               {"d_o", random_tensor(DType::kF32, {1, 131, 2, 20}, "do")},
               {"o", TestTensor(DType::kF32, {1, 131, 2, 20})},
               {"lse", TestTensor(DType::kF32, {1, 2, 131})},
               {"d_q", TestTensor(DType::kF32, {1, 131, 2, 20})},
               {"d_k", TestTensor(DType::kF32, {1, 650, 1, 20})},
               {"d_v", TestTensor(DType::kF32, {1, 650, 1, 20})}};
  const Values d_o = t["d_o"].values();
  for (const OpRunner& runner : op_runners()) {
    INFO(runner.name);
    AttentionForward forward;
    forward.scale = 0.25F;
    bind_tensors(forward, t);
    runner.run(forward);
    AttentionBackward backward;
    backward.scale = 0.25F;
    bind_tensors(backward, t);
    runner.run(backward);
    for (const char* name : {"q", "k", "v"}) {
      INFO(name);
      const Values gradient = t[std::string("d_") + name].values();
      const Values direction = random_tensor(DType::kF32, {static_cast<std::int64_t>(gradient.size())}, "u").values();
      double want[2];
      for (const int side : {0, 1}) {
        std::map<std::string, Values> at = {{"q", t["q"].values()}, {"k", t["k"].values()}, {"v", t["v"].values()}};
        for (std::size_t i = 0; i < direction.size(); ++i) at[name][i] += (side == 0 ? -1e-5 : 1e-5) * direction[i];
        const Values o = attention_reference(shape, at["q"], at["k"], at["v"]).o;
        want[side] = 0;
        for (std::size_t i = 0; i < o.size(); ++i) want[side] += o[i] * d_o[i];
      }
      double got = 0;
      double size = 0;
      for (std::size_t i = 0; i < gradient.size(); ++i) {
        got += gradient[i] * direction[i];
        size += std::abs(gradient[i] * direction[i]);
      }
      CHECK(std::abs(got - (want[1] - want[0]) / 2e-5) < 1e-6 * size);
    }
  }
}

TEST_CASE("sum of squares over several pieces matches f64", FERRY_OP_TAGS) {
  const std::vector<OpRunner> runners = op_runners();
  for (const DType dtype : kBoth) {
    const TestTensor x = random_tensor(dtype, {200003}, "x", 1, Placement::kOffset);
    double want = 0;
    for (const double value : x.values()) want += value * value;
    for (const OpRunner& runner : runners) {
      INFO(runner.name);
      TestTensor y(DType::kF32, {1});
      SumOfSquares op;
      op.x = x.view();
      op.y = y.view();
      runner.run(op);
      CHECK(difference(runner.name, SumOfSquares::kName, y, Values{want}) == "");
    }
  }
}

TEST_CASE("rmsnorm d_weight sums over many blocks of rows", FERRY_OP_TAGS) {
  const std::vector<OpRunner> runners = op_runners();
  for (const DType dtype : kBoth) {
    Tensors t = {{"x", random_tensor(dtype, {1500, 33}, "x")},
                 {"weight", random_tensor(dtype, {33}, "weight")},
                 {"d_y", random_tensor(dtype, {1500, 33}, "dy")},
                 {"y", TestTensor(dtype, {1500, 33})},
                 {"rstd", TestTensor(DType::kF32, {1500})},
                 {"d_x", TestTensor(dtype, {1500, 33})},
                 {"d_weight", TestTensor(dtype, {33})}};
    const Values x = t["x"].values();
    const Values d_y = t["d_y"].values();
    const Values normed = rmsnorm_reference(x, Values(33, 1.0), 1e-5);
    Values want(33);
    for (std::size_t i = 0; i < x.size(); ++i) want[i % 33] += normed[i] * d_y[i];
    for (const OpRunner& runner : runners) {
      INFO(runner.name << " " << to_string(dtype));
      RmsNormForward forward;
      bind_tensors(forward, t);
      runner.run(forward);
      RmsNormBackward backward;
      bind_tensors(backward, t);
      runner.run(backward);
      CHECK(difference(runner.name, RmsNormBackward::kName, t["d_weight"], want) == "");
    }
  }
}

}  // namespace ferry::test
