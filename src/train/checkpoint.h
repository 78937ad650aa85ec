// SPDX-License-Identifier: Apache-2.0
// A checkpoint: a folder that transformers loads as a model and from which ferry goes on to the bit.
// docs/checkpoints.md lists its files.
#pragma once

#include <filesystem>
#include <optional>

#include "config/model_config.h"
#include "offload/engine.h"
#include "train/checkpoint_state.h"
#include "train/metrics.h"

namespace ferry {

/// What a checkpoint is made of; all outlive the call.
struct CheckpointParts {
  Engine& engine;
  const ModelConfig& model;
  DType dtype = DType::kF32;
  const RunIdentity& run;
  const TrainerState& trainer;
  std::filesystem::path metrics;  // the log so far; may be empty
  bool planned = false;           // the log that a resumed run goes on with tells of this save
};

/// Writes a checkpoint, streamed in pieces. It appears, or replaces an older one of its name, only when all of it is on
/// the disk. Waits for all updates first. Throws Error{kIo}; Error{kDevice} for a weight that is not finite: then
/// nothing is saved.
SaveMetrics save_checkpoint(const std::filesystem::path& folder, const CheckpointParts& parts);

/// state.json of `folder`; nothing else is read. Throws Error{kIo}.
CheckpointState read_checkpoint_state(const std::filesystem::path& folder);

/// A checkpoint that is whole.
class Checkpoint {
 public:
  /// Reads every byte. Throws Error{kIo} that names the file: missing, cut short, of another checksum or format.
  explicit Checkpoint(std::filesystem::path folder);

  const std::filesystem::path& folder() const { return folder_; }
  const CheckpointState& state() const { return state_; }
  /// The log of the run until then; empty when there was none.
  std::filesystem::path metrics() const;

  /// Sets weights, optimizer state and step counts of an engine that has not yet made a step, straight from the mapped
  /// files. Throws Error{kIo} before anything is set when a tensor is missing, or has another type or shape than this
  /// engine keeps.
  void restore(Engine& engine) const;

 private:
  std::filesystem::path folder_;
  CheckpointState state_;
};

/// The newest whole one in a folder of checkpoints; nothing where there is none at all. A damaged one is a warning that
/// names the damage, and the one before it is tried. Throws Error{kIo} when there are some and none is whole.
std::optional<Checkpoint> newest_whole_checkpoint(const std::filesystem::path& folder);

}  // namespace ferry
