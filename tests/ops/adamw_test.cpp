// SPDX-License-Identifier: Apache-2.0
// AdamW as an op gives the bits of the scalar adamw_update, in all storage formats.
#include "optim/adamw.h"

#include "catch.h"
#include "ops/op_runners.h"
#include "optim/test_util.h"

namespace ferry::test {
namespace {

Adamw op_on(Parameters& parameters, const AdamwScalars& scalars) {
  const AdamwRange range = parameters.range();
  const DType moment = moment_dtype(range.dtype, range.state);
  Adamw op;
  op.weight = TensorView(range.weight, range.dtype, {range.n});
  if (range.weight_low != nullptr) op.weight_low = TensorView(range.weight_low, DType::kI16, {range.n});
  op.m = TensorView(range.m, moment, {range.n});
  op.v = TensorView(range.v, moment, {range.n});
  op.gradient = TensorView(const_cast<void*>(range.gradient), range.dtype, {range.n});
  op.scalars = scalars;
  op.parameter = range.parameter;
  op.element = range.element;
  return op;
}

/// Every other step scales its gradient.
void check_steps(const OpRunner& runner, const Format& format, Parameters got, const AdamwOptions& options, double lr) {
  Parameters want = got;
  for (std::int64_t step = 1; step <= 7; ++step) {
    AdamwScalars scalars = scalars_of(format, options, lr, step);
    if (step % 2 == 0) scalars.gradient_scale = 0.3F;
    want.fill_delicate_gradient(step);
    got.fill_delicate_gradient(step);
    adamw_update(want.range(), scalars, SimdLevel::kScalar);
    runner.run(op_on(got, scalars));
    INFO("step " << step);
    REQUIRE(got.same_bits_as(want));
  }
}

}  // namespace

// Infinities, NaN, denormals and negative second moments are among the values.
TEST_CASE("adamw gives the host's bits in every format, size and alignment", FERRY_OP_TAGS) {
  for (const OpRunner& runner : op_runners()) {
    for (const Format& format : kFormats) {
      for (const std::int64_t n : {1, 7, 8, 9, 22, 1027, 70001}) {
        for (const std::int64_t offset : {0, 1}) {
          INFO(runner.name << ", " << format.name << ", n " << n << ", offset " << offset);
          check_steps(runner, format, delicate_parameters(format, n, offset), {0.9, 0.999, 1e-8, 0.1}, 1e-2);
        }
      }
    }
  }
}

TEST_CASE("adamw gives the host's bits where updates vanish or overflow", FERRY_OP_TAGS) {
  for (const OpRunner& runner : op_runners()) {
    for (const Format& format : kFormats) {
      for (const double lr : {0.0, 1e-45, 1e30}) {
        INFO(runner.name << ", " << format.name << ", lr " << lr);
        check_steps(runner, format, delicate_parameters(format, 1027), {0.0, 0.999, 1e-40, 0}, lr);
      }
    }
  }
}

}  // namespace ferry::test
