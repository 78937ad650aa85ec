// SPDX-License-Identifier: Apache-2.0
// The whole model against PyTorch: loss, every gradient, and logits of tiny Llamas.
#include "catch.h"
#include "offload/engine_checks.h"

namespace ferry::test {

TEST_CASE("f32 loss is within 1e-5 and each gradient within 1e-4 of PyTorch") { check_f32_against_pytorch("cpu"); }

TEST_CASE("bf16 is about as close to the f64 truth as PyTorch's bf16") { check_bf16_against_pytorch("cpu"); }

TEST_CASE("evaluation and the logits of the last position agree with PyTorch") {
  check_evaluation_against_pytorch("cpu");
}

TEST_CASE("gradient norms and clipping match PyTorch") { check_norm_against_pytorch("cpu"); }

}  // namespace ferry::test
