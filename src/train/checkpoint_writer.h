// SPDX-License-Identifier: Apache-2.0
// Saves the checkpoints of a run into its folder and keeps the last few.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <utility>

#include "train/checkpoint.h"

namespace ferry {

struct CheckpointWriterOptions {
  std::filesystem::path folder;   // of the checkpoints
  std::filesystem::path metrics;  // the log, which every checkpoint holds a copy of; may be empty
  std::int64_t keep_last = 2;     // >= 1
};

class CheckpointWriter {
 public:
  /// `engine` and `model` outlive this object. Tidies up `folder` after processes that died.
  CheckpointWriter(CheckpointWriterOptions options, Engine& engine, const ModelConfig& model, RunIdentity run);

  /// As save_checkpoint; older checkpoints are removed when the new one is on the disk. Error{kIo} says what to do.
  SaveMetrics save(const TrainerState& state, bool planned);
  /// The last one saved.
  const std::optional<std::filesystem::path>& last() const { return last_; }

 private:
  CheckpointWriterOptions options_;
  Engine& engine_;
  const ModelConfig& model_;
  RunIdentity run_;
  std::optional<std::filesystem::path> last_;
};

}  // namespace ferry
