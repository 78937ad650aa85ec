// SPDX-License-Identifier: Apache-2.0
// Random models, engine options and scripts of a short training, each from one number.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/model_config.h"
#include "offload/engine.h"

namespace ferry::test {

/// What a step is told of the batch after it.
enum class NextBatch { kUnknown, kKnown, kWrong };

/// One training step, and what comes between it and the next.
struct ScriptStep {
  std::int64_t batch_size = 1;
  std::int64_t seq_len = 1;
  NextBatch next = NextBatch::kUnknown;
  bool read_loss = false;
  bool read_stats = false;
  bool evaluate = false;
  std::int64_t logits_after = 0;  // ids to predict after; 0 = no prediction
};

struct RandomConfig {
  std::uint64_t seed = 0;
  ModelConfig model;
  EngineOptions options;
  std::vector<ScriptStep> script;

  /// Everything, in one line that begins with the seed.
  std::string describe() const;
  /// The same arithmetic in the plainest order: all on the device, nothing made again, one thread.
  EngineOptions resident() const;
  /// Rounding only apart from `options`: one micro-batch, no cuts, one vocabulary chunk.
  EngineOptions plain_arithmetic() const;
};

/// The same for the same seed.
RandomConfig random_config(std::uint64_t seed);

/// Seeds [first, first + count) that a test runs: FERRY_RANDOM_FIRST or 0, FERRY_RANDOM_CONFIGS or `count`.
struct SeedRange {
  std::uint64_t first = 0;
  std::uint64_t count = 0;
};
SeedRange seeds_to_run(std::uint64_t count);

}  // namespace ferry::test
