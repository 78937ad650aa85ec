// SPDX-License-Identifier: Apache-2.0
// The text that `ferry train` prints before and after a run.
#pragma once

#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cli/command_line.h"
#include "cli/run_folder.h"
#include "cli/training_plan.h"
#include "config/model_config.h"
#include "data/sequence_set.h"
#include "offload/engine.h"
#include "train/checkpoint.h"
#include "train/trainer.h"

namespace ferry {

struct StartReport {
  const CommandLine& line;
  const ModelConfig& model;
  const Engine& engine;
  const TrainingPlan& plan;
  const Backend& backend;
  const SequenceSet& train_data;
  const SequenceSet* val_data = nullptr;  // may be absent
  std::int64_t steps = 0;
  const Checkpoint* resumed = nullptr;  // may be absent
};
std::vector<std::string> describe_start(const StartReport& report);

struct EndReport {
  const TrainResult& result;
  const RunFolder& folder;
  const std::filesystem::path& weights;  // the folder that holds them; empty when nothing was saved
  bool byte_vocabulary = false;
  std::optional<double> expected_step_ms;  // by the plan
};
std::vector<std::string> describe_end(const EndReport& report);

/// The words of byte-level sources; of at most kMaxWordBytes of them.
std::set<std::string> words_of(const std::vector<TokenSource>& sources);
inline constexpr std::int64_t kMaxWordBytes = std::int64_t{1} << 28;

}  // namespace ferry
