// SPDX-License-Identifier: Apache-2.0
// state.json of a checkpoint: where the run stood, and how it was configured.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "data/token_shard.h"
#include "train/trainer_state.h"

namespace ferry {

/// What stays the same over a run.
struct RunIdentity {
  std::string config_toml;  // every choice that decides a bit is given in it
  std::string ferry_version;
  std::string backend;           // name and description
  std::int64_t n_sequences = 0;  // of the training data
  std::int64_t n_data_tokens = 0;
  std::vector<DataFingerprint> data_files;  // empty: written by a ferry that kept none

  bool operator==(const RunIdentity&) const = default;
};

struct CheckpointState {
  RunIdentity run;
  TrainerState trainer;
  std::int64_t applied_steps = 0;                  // that AdamW counts
  std::map<std::string, std::int64_t> file_bytes;  // of the other files, by name

  bool operator==(const CheckpointState&) const = default;
};

std::string to_json(const CheckpointState& state);

/// `origin` (the file) begins the messages. Throws Error{kIo}: not JSON, another format or version, a key that is
/// missing, of the wrong type or out of range.
CheckpointState parse_checkpoint_state(const std::string& text, const std::string& origin);

}  // namespace ferry
