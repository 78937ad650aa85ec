// SPDX-License-Identifier: Apache-2.0
#include "model/model_flop.h"

#include "catch.h"
#include "config/presets.h"

namespace ferry {

TEST_CASE("model FLOP count 6 per product weight and token, and causal attention") {
  ModelConfig config;
  config.vocab_size = 100;
  config.hidden_size = 8;
  config.intermediate_size = 20;
  config.n_layers = 3;
  config.n_heads = 4;
  config.n_kv_heads = 2;
  config.head_dim = 2;
  // One token sees itself alone.
  const double layer = 8 * (4 + 2 * 2) * 2 + 8 * 8 + 3 * 8 * 20;
  const double weights = 3 * layer + 100 * 8;
  CHECK(model_flop(config, 1, 1) == 6 * weights + 12 * 3 * 8);
  // Four tokens see 10 keys.
  CHECK(model_flop(config, 5, 4) == 5 * (4 * 6 * weights + 12 * 3 * 8 * 10));
}

TEST_CASE("a 1B step of 4 x 2048 tokens takes about 64 TFLOP") {
  const double flop = model_flop(resolve_model("llama-3.2-1b"), 4, 2048);
  CHECK(flop / 1e12 > 63);
  CHECK(flop / 1e12 < 66);
}

}  // namespace ferry
