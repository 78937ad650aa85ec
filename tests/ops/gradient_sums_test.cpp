// SPDX-License-Identifier: Apache-2.0
// What sums gradients over micro-batches and rows: d_weight in f32 that accumulates, sums of squares without some rows.
#include <cmath>

#include "catch.h"
#include "ops/bound_op.h"
#include "ops/op_runners.h"

namespace ferry::test {
namespace {

constexpr DType kF32 = DType::kF32;
constexpr DType kBoth[] = {DType::kF32, DType::kBf16};

struct Shape {
  std::int64_t rows;
  std::int64_t width;
};

/// Inputs of a backward pass of RMSNorm in `dtype`, rstd near 1.
struct Norm {
  Norm(DType dtype, Shape shape)
      : d_y(random_tensor(dtype, {shape.rows, shape.width}, "d_y")),
        x(random_tensor(dtype, {shape.rows, shape.width}, "x")),
        weight(random_tensor(dtype, {shape.width}, "weight")),
        rstd(random_tensor(kF32, {shape.rows}, "rstd")) {}

  /// Of rows [begin, begin + count).
  RmsNormBackward op(std::int64_t begin, std::int64_t count, const TestTensor& d_x, const TestTensor& d_weight) const {
    RmsNormBackward op;
    op.d_y = d_y.view().rows(begin, count);
    op.x = x.view().rows(begin, count);
    op.weight = weight.view();
    op.rstd = rstd.view().rows(begin, count);
    op.d_x = d_x.view().rows(begin, count);
    op.d_weight = d_weight.view();
    return op;
  }

  TestTensor d_y, x, weight, rstd;
};

/// got == a + b in f32, to the bit.
bool is_sum(const TestTensor& got, const TestTensor& a, const TestTensor& b) {
  const std::vector<double> left = a.values();
  std::vector<double> sum = b.values();
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = static_cast<float>(left[i]) + static_cast<float>(sum[i]);
  return got.values() == sum;
}

void check_halves(const OpRunner& runner, DType dtype, Shape shape) {
  INFO(runner.name << ", " << to_string(dtype) << ", " << shape.rows << " x " << shape.width);
  const Norm norm(dtype, shape);
  const std::int64_t half = shape.rows / 2 - 3;
  const TestTensor d_x(dtype, {shape.rows, shape.width});
  const TestTensor halves_d_x(dtype, {shape.rows, shape.width});
  const TestTensor whole(kF32, {shape.width}), first(kF32, {shape.width}), second(kF32, {shape.width});
  const TestTensor sum(kF32, {shape.width}, Placement::kOffset);  // NaN before: the first half does not read it
  runner.run(norm.op(0, shape.rows, d_x, whole));
  runner.run(norm.op(0, half, halves_d_x, first));
  runner.run(norm.op(half, shape.rows - half, halves_d_x, second));
  RmsNormBackward op = norm.op(0, half, halves_d_x, sum);
  runner.run(op);
  CHECK(same_bits(sum, first));
  op = norm.op(half, shape.rows - half, halves_d_x, sum);
  op.accumulate = true;
  runner.run(op);
  CHECK(is_sum(sum, first, second));
  CHECK(sum.surroundings_untouched());
  CHECK(difference(runner.name, RmsNormBackward::kName, sum, whole.values()) == "");
  CHECK(difference(runner.name, RmsNormBackward::kName, halves_d_x, d_x.values()) == "");
}

}  // namespace

TEST_CASE("d_weight of two halves of the rows accumulates to the sum of both, exactly", FERRY_OP_TAGS) {
  for (const OpRunner& runner : op_runners()) {
    for (const DType dtype : kBoth) {
      for (const Shape shape : {Shape{613, 64}, Shape{613, 177}, Shape{37, 9001}}) check_halves(runner, dtype, shape);
    }
  }
}

TEST_CASE("d_weight in bf16 is the one in f32, rounded once", FERRY_OP_TAGS) {
  constexpr Shape kShape = {301, 177};
  for (const OpRunner& runner : op_runners()) {
    INFO(runner.name);
    const Norm norm(DType::kBf16, kShape);
    const TestTensor d_x(DType::kBf16, {kShape.rows, kShape.width});
    const TestTensor wide(kF32, {kShape.width}), narrow(DType::kBf16, {kShape.width});
    runner.run(norm.op(0, kShape.rows, d_x, wide));
    runner.run(norm.op(0, kShape.rows, d_x, narrow));
    TestTensor rounded(DType::kBf16, {kShape.width});
    rounded.set(wide.values());
    CHECK(same_bits(narrow, rounded));
  }
}

namespace {

/// Which rows to leave out, by values of both signs.
std::vector<double> some_rows(std::int64_t n_rows) {
  std::vector<double> skip(static_cast<std::size_t>(n_rows));
  for (std::size_t r = 0; r < skip.size(); ++r) skip[r] = r % 3 == 1 ? 1 : (r % 7 == 5 ? -1 : 0);
  return skip;
}

/// x with `value` in the skipped rows.
TestTensor with_skipped(const TestTensor& x, const std::vector<double>& skip, double value, Placement placement) {
  const TensorView& view = x.view();
  std::vector<double> values = x.values();
  const std::size_t width = values.size() / skip.size();
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = skip[i / width] != 0 ? value : values[i];
  TestTensor result(view.dtype, {view.shape[0], view.shape[1]}, placement);
  result.set(values);
  return result;
}

std::uint32_t sum_bits(const OpRunner& runner, const TestTensor& x, const TensorView& skip) {
  const TestTensor y(kF32, {1});
  runner.run(SumOfSquares{.x = x.view(), .skip = skip, .y = y.view()});
  return y.bits()[0];
}

}  // namespace

TEST_CASE("a sum of squares takes skipped rows as zeros, to the bit, whatever they hold", FERRY_OP_TAGS) {
  const std::vector<std::vector<OpRunner>> groups = equal_runners();
  for (const DType dtype : kBoth) {
    for (const Shape shape : {Shape{1, 5}, Shape{17, 3}, Shape{70001, 1}, Shape{250, 1029}, Shape{7, 40001}}) {
      const TestTensor x = random_tensor(dtype, {shape.rows, shape.width}, "x");
      const std::vector<double> skipped = some_rows(shape.rows);
      TestTensor skip(DType::kI32, {shape.rows});
      skip.set(skipped);
      for (const std::vector<OpRunner>& group : groups) {
        const TestTensor zeroed = with_skipped(x, skipped, 0, Placement::kAligned);
        const std::uint32_t want = sum_bits(group[0], zeroed, {});
        for (const OpRunner& runner : group) {
          for (const Placement placement : {Placement::kAligned, Placement::kOffset}) {
            INFO(runner.name << ", " << to_string(dtype) << ", " << shape.rows << " x " << shape.width);
            CHECK(sum_bits(runner, with_skipped(x, skipped, NAN, placement), skip.view()) == want);
          }
        }
      }
    }
  }
}

TEST_CASE("a sum of squares that skips all rows is 0, one that skips none the whole", FERRY_OP_TAGS) {
  const TestTensor x = random_tensor(DType::kBf16, {33, 100}, "x");
  TestTensor none(DType::kI32, {33}), all(DType::kI32, {33});
  none.set(std::vector<double>(33, 0));
  all.set(std::vector<double>(33, 1));
  for (const OpRunner& runner : op_runners()) {
    INFO(runner.name);
    CHECK(sum_bits(runner, x, all.view()) == 0);
    CHECK(sum_bits(runner, x, none.view()) == sum_bits(runner, x, {}));
  }
}

}  // namespace ferry::test
