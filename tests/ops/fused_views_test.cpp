// SPDX-License-Identifier: Apache-2.0
// Views that interleave in one buffer, as the model lays out query, key and value, and gate and up.
#include "catch.h"
#include "ops/bound_op.h"
#include "ops/op_runners.h"

namespace ferry::test {
namespace {

constexpr DType kBoth[] = {DType::kF32, DType::kBf16};

/// Columns [begin, begin + count) of row-major bits.
std::vector<std::uint32_t> columns(const std::vector<std::uint32_t>& bits, std::int64_t width, std::int64_t begin,
                                   std::int64_t count) {
  std::vector<std::uint32_t> result;
  for (auto row = bits.begin(); row != bits.end(); row += width)
    result.insert(result.end(), row + begin, row + begin + count);
  return result;
}

TestTensor copy_of(const TestTensor& tensor) {
  const TensorView& view = tensor.view();
  TestTensor copy(view.dtype, std::vector<std::int64_t>(view.shape.begin(), view.shape.begin() + view.rank));
  copy.set(tensor.values());
  return copy;
}

/// Heads [first, first + count) of (B, T, heads * D) rows as (B, T, count, D).
TensorView heads(const TensorView& rows, std::int64_t first, std::int64_t count, std::int64_t head_width) {
  TensorView view = rows.columns(first * head_width, count * head_width);
  view.rank = 4;
  view.shape = {rows.shape[0], rows.shape[1], count, head_width};
  view.stride = {rows.stride[0], rows.stride[1], head_width, 1};
  return view;
}

}  // namespace

TEST_CASE("swiglu on the halves of one buffer equals swiglu on two", FERRY_OP_TAGS) {
  for (const OpRunner& runner : op_runners()) {
    for (const DType dtype : kBoth) {
      for (const std::int64_t width : {37, 64}) {
        INFO(runner.name << " " << to_string(dtype) << " " << width);
        const TestTensor fused = random_tensor(dtype, {19, 2 * width}, "fused");
        const TestTensor d_y = random_tensor(dtype, {19, width}, "d_y");
        const Tensors apart = {{"d_gate", TestTensor(dtype, {19, width})}, {"d_up", TestTensor(dtype, {19, width})}};
        SwigluBackward op;
        op.d_y = d_y.view();
        op.gate = fused.view().columns(0, width);
        op.up = fused.view().columns(width, width);
        bind_tensors(op, apart);
        runner.run(op);
        op.d_gate = op.gate;
        op.d_up = op.up;
        runner.run(op);
        CHECK((columns(fused.bits(), 2 * width, 0, width) == apart.at("d_gate").bits()));
        CHECK((columns(fused.bits(), 2 * width, width, width) == apart.at("d_up").bits()));
      }
    }
  }
}

TEST_CASE("swiglu backward gives the bits of the forward pass again", FERRY_OP_TAGS) {
  for (const OpRunner& runner : op_runners()) {
    for (const DType dtype : kBoth) {
      for (const std::int64_t width : {37, 64}) {
        INFO(runner.name << " " << to_string(dtype) << " " << width);
        const Tensors in = {{"gate", random_tensor(dtype, {19, width}, "gate", 3)},
                            {"up", random_tensor(dtype, {19, width}, "up")},
                            {"y", TestTensor(dtype, {19, width})}};
        SwigluForward forward;
        bind_tensors(forward, in);
        runner.run(forward);
        const Tensors d = {{"d_y", random_tensor(dtype, {19, width}, "d_y")},
                           {"d_gate", TestTensor(dtype, {19, width})},
                           {"d_up", TestTensor(dtype, {19, width})}};
        SwigluBackward backward;
        bind_tensors(backward, in);
        bind_tensors(backward, d);
        backward.y = backward.d_y;
        runner.run(backward);
        CHECK((d.at("d_y").bits() == in.at("y").bits()));
      }
    }
  }
}

TEST_CASE("rope turns its heads of a fused buffer and no others", FERRY_OP_TAGS) {
  constexpr std::int64_t kWidth = 12, kHeads = 7, kLength = 9;
  for (const OpRunner& runner : op_runners()) {
    for (const DType dtype : kBoth) {
      INFO(runner.name << " " << to_string(dtype));
      const TestTensor fused = random_tensor(dtype, {2, kLength, kHeads * kWidth}, "qkv");
      const TestTensor before = copy_of(fused);
      Rope op;
      op.x = heads(fused.view(), 1, 4, kWidth);
      const Tensors tables = {{"cos", random_tensor(DType::kF32, {kLength, kWidth / 2}, "cos")},
                              {"sin", random_tensor(DType::kF32, {kLength, kWidth / 2}, "sin")}};
      bind_tensors(op, tables);
      runner.run(op);
      constexpr std::int64_t kRow = kHeads * kWidth;
      CHECK((columns(fused.bits(), kRow, 0, kWidth) == columns(before.bits(), kRow, 0, kWidth)));
      CHECK((columns(fused.bits(), kRow, kWidth, 4 * kWidth) != columns(before.bits(), kRow, kWidth, 4 * kWidth)));
      CHECK((columns(fused.bits(), kRow, 5 * kWidth, 2 * kWidth) ==
             columns(before.bits(), kRow, 5 * kWidth, 2 * kWidth)));
    }
  }
}

TEST_CASE("attention gradients in one buffer equal those in three", FERRY_OP_TAGS) {
  constexpr std::int64_t kWidth = 16, kLength = 33;
  for (const OpRunner& runner : op_runners()) {
    for (const DType dtype : kBoth) {
      INFO(runner.name << " " << to_string(dtype));
      const TestTensor qkv = random_tensor(dtype, {2, kLength, 8 * kWidth}, "qkv");
      const TestTensor d_qkv(dtype, {2, kLength, 8 * kWidth});
      const Tensors apart = {{"o", TestTensor(dtype, {2, kLength, 4, kWidth})},
                             {"lse", TestTensor(DType::kF32, {2, 4, kLength})},
                             {"d_o", random_tensor(dtype, {2, kLength, 4, kWidth}, "d_o")},
                             {"d_q", TestTensor(dtype, {2, kLength, 4, kWidth})},
                             {"d_k", TestTensor(dtype, {2, kLength, 2, kWidth})},
                             {"d_v", TestTensor(dtype, {2, kLength, 2, kWidth})}};
      AttentionForward forward;
      forward.scale = 0.25F;
      bind_tensors(forward, apart);
      forward.q = heads(qkv.view(), 0, 4, kWidth);
      forward.k = heads(qkv.view(), 4, 2, kWidth);
      forward.v = heads(qkv.view(), 6, 2, kWidth);
      runner.run(forward);
      AttentionBackward backward;
      backward.scale = 0.25F;
      bind_tensors(backward, apart);
      backward.q = forward.q;
      backward.k = forward.k;
      backward.v = forward.v;
      runner.run(backward);
      backward.d_q = heads(d_qkv.view(), 0, 4, kWidth);
      backward.d_k = heads(d_qkv.view(), 4, 2, kWidth);
      backward.d_v = heads(d_qkv.view(), 6, 2, kWidth);
      runner.run(backward);
      // One plan of a library for each set of strides: equal within its tolerance.
      const std::vector<double> fused = d_qkv.values();
      for (const auto& [name, first] : {std::pair{"d_q", 0}, std::pair{"d_k", 4}, std::pair{"d_v", 6}}) {
        INFO(name);
        const TestTensor& want = apart.at(name);
        TestTensor got = copy_of(want);
        const std::int64_t count = want.view().shape[2] * kWidth;
        std::vector<double> values;
        for (std::size_t row = 0; row < fused.size(); row += 8 * kWidth) {
          const auto begin = fused.begin() + static_cast<std::ptrdiff_t>(row) + first * kWidth;
          values.insert(values.end(), begin, begin + count);
        }
        got.set(values);
        CHECK(difference(runner.name, AttentionBackward::kName, got, want.values()) == "");
      }
    }
  }
}

}  // namespace ferry::test
