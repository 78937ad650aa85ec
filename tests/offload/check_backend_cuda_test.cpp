// SPDX-License-Identifier: Apache-2.0
// Whole training steps whose every op the CPU checks.
#include "gpu_or_skip.h"
#include "offload/check_training.h"

namespace ferry::test {
namespace {

/// Heads of a width that fused attention takes.
ModelConfig wide_heads() {
  ModelConfig config = small_config(true);
  config.hidden_size = 128;
  config.intermediate_size = 256;
  config.head_dim = 64;
  config.initializer_range = 0.05;
  return config;
}

}  // namespace

TEST_CASE("check:cuda,cpu agrees for 20 steps of a tiny model", "[gpu]") {
  gpu_or_skip();
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    CAPTURE(to_string(dtype));
    check_training("check:cuda,cpu", small_config(true), dtype, 20);
    check_training("check:cuda,cpu", small_config(false), dtype, 20);
    check_training("check:cuda,cpu", wide_heads(), dtype, 20);
  }
}

}  // namespace ferry::test
