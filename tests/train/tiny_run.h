// SPDX-License-Identifier: Apache-2.0
// A very small byte-level model with an engine and data, for the tests of training.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "backend/backend.h"
#include "config/model_config.h"
#include "data/batch_loader.h"
#include "offload/engine.h"
#include "temp_file.h"

namespace ferry::test {

ModelConfig byte_config(bool tied = true);

/// A text that a small model learns quickly.
std::string simple_text(int n_sentences);

/// Everything a Trainer drives.
struct TinyRun {
  static constexpr std::int64_t kBatchSize = 4;
  static constexpr std::int64_t kSeqLen = 16;

  explicit TinyRun(DType dtype = DType::kF32, bool tied = true);

  TempFolder folder;
  ModelConfig config;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Engine> engine;

  /// Sequences of simple_text.
  SequenceSet sequences(int n_sentences);
};

/// A hash of all weights: equal bits, equal numbers.
std::uint64_t fingerprint(Engine& engine);

}  // namespace ferry::test
