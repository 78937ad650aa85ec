// SPDX-License-Identifier: Apache-2.0
// The text that `ferry train` prints before and after a run.
#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "cli/command_line.h"
#include "cli/run_folder.h"
#include "config/model_config.h"
#include "data/sequence_set.h"
#include "offload/engine.h"
#include "train/trainer.h"

namespace ferry {

/// "5 layers of width 128 (4 heads, 2 key/value heads), vocabulary 256, tied: 955,776 parameters in bf16"
std::string describe_model(const ModelConfig& model, std::int64_t n_parameters, DType dtype);

/// Two columns: device and host memory by purpose, largest first, each with its sum.
std::vector<std::string> memory_table(const std::vector<MemoryLine>& device, const std::vector<MemoryLine>& host);

struct StartReport {
  const CommandLine& line;
  const ModelConfig& model;
  const Engine& engine;
  const Capabilities& backend;
  const SequenceSet& train_data;
  const SequenceSet* val_data = nullptr;  // may be absent
  std::int64_t steps = 0;
};
std::vector<std::string> describe_start(const StartReport& report);

std::vector<std::string> describe_end(const TrainResult& result, const RunFolder& folder, bool byte_vocabulary);

/// The words of byte-level sources; of at most kMaxWordBytes of them.
std::set<std::string> words_of(const std::vector<TokenSource>& sources);
inline constexpr std::int64_t kMaxWordBytes = std::int64_t{1} << 28;

}  // namespace ferry
