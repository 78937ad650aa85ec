// SPDX-License-Identifier: Apache-2.0
// Training on a backend that compares every op with another's.
#pragma once

#include <cmath>
#include <string>

#include "catch.h"
#include "offload/tiny_model.h"

namespace ferry::test {

/// Trains and evaluates on check:A,B; a disagreement throws, which fails the test with its message.
inline void check_training(const std::string& backend_name, const ModelConfig& config, DType dtype, int n_steps) {
  const auto backend = create_backend(backend_name, {.threads = 2});
  EngineOptions options;
  options.dtype = dtype;
  options.batch_size = 2;
  options.seq_len = 32;
  options.vocab_chunk = 16;
  options.threads = 1;
  Engine engine(*backend, config, options);
  engine.initialize(1);
  for (std::uint64_t step = 0; step < static_cast<std::uint64_t>(n_steps); ++step) {
    engine.train_step(random_batch(config, 2, 32, step), 1e-3);
  }
  engine.finish();
  CHECK(std::isfinite(engine.evaluate(random_batch(config, 2, 32, 0))));
}

}  // namespace ferry::test
