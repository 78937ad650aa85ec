// SPDX-License-Identifier: Apache-2.0
// What one run is asked to do: typed values with their defaults. option_table.cpp gives each its key, range and help.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/dtype.h"

namespace ferry {

/// One field per key, named like the key. Zero, an empty text and an empty list mean "not given" where the key's range
/// leaves them out.
struct RunConfig {
  enum class DataFormat { kAuto, kShard, kU16, kU32, kBytes };
  enum class Order { kSequential, kShuffled };
  enum class Schedule { kConstant, kLinear, kCosine, kWsd };
  enum class OptimizerState { kF32, kMixed, kBf16 };
  enum class Rounding { kStochastic, kNearest };
  enum class Offload { kAll, kLayers, kNone };
  enum class Residuals { kAuto, kDevice, kHost };
  enum class Attention { kAuto, kCudnn, kFerry };

  // model
  std::string model;      // a preset, a Hugging Face folder or a config.json
  std::string init_from;  // a Hugging Face folder
  std::int64_t seed = 2024;
  DType dtype = DType::kBf16;

  // data
  std::vector<std::string> train_data;
  std::vector<std::string> val_data;
  DataFormat data_format = DataFormat::kAuto;
  std::int64_t seq_len = 2048;
  std::int64_t batch_size = 4;
  std::int64_t accumulate = 1;
  Order order = Order::kSequential;
  std::int64_t data_seed = 0;

  // optimizer
  double lr = 3e-4;
  Schedule schedule = Schedule::kConstant;
  std::int64_t warmup_steps = 0;
  std::int64_t decay_steps = 0;
  double min_lr_ratio = 0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool decay_embeddings = false;
  double grad_clip = 0;  // 0 = none
  OptimizerState optimizer_state = OptimizerState::kF32;
  Rounding rounding = Rounding::kStochastic;
  std::vector<std::string> freeze;  // patterns of names

  // offload
  Offload offload = Offload::kAll;
  std::string gpu_memory = "auto";  // words or a size: parse_size() in option_value.h reads it
  std::string host_memory = "auto";

  // run
  std::int64_t steps = 0;       // exactly one of steps
  std::int64_t epochs = 0;      // and epochs is given
  std::string output;           // a folder
  std::string resume = "none";  // "none", "auto", or a folder
  std::int64_t save_every = 0;  // 0 = only when the run is ended early
  std::int64_t keep_last = 2;   // checkpoints
  std::int64_t log_every = 10;
  std::int64_t eval_every = 0;   // 0 = only at the end
  std::int64_t eval_tokens = 0;  // 0 = all of val_data
  std::string backend = "auto";
  std::int64_t device = 0;   // index of the GPU
  std::int64_t threads = 0;  // 0 = all available
  bool check_finite = true;
  bool quiet = false;
  std::string log_file;
  std::string trace;  // a file
  std::int64_t sample_tokens = 0;
  std::string sample_prompt = "\n";

  // generate
  std::string prompt;
  std::string prompt_ids;  // numbers between commas
  std::int64_t max_tokens = 200;
  double temperature = 0.8;  // 0 = greedy
  std::int64_t top_k = 0;    // 0 = all
  double top_p = 1;

  // eval
  bool json = false;

  // inspect
  bool all = false;
  bool checksums = false;

  // bench
  std::int64_t untimed_steps = 3;
  double floor_seconds = 5;
  std::int64_t adamw_params = std::int64_t{1} << 27;
  double machine_seconds = 3;

  // plan: what is given holds, the plan chooses the rest
  std::string rates;  // a file
  std::int64_t weight_slots = 0;
  std::int64_t grad_slots = 0;
  std::int64_t vocab_chunk = 0;             // rows; 0 = the plan chooses
  std::int64_t resident_state_layers = -1;  // -1 = not given
  std::int64_t resident_layers = -1;        // -1 = not given
  Residuals residuals = Residuals::kAuto;
  // Words, or words with a number: parse_counted() in option_value.h reads them.
  std::string recompute = "auto";
  std::string mlp_chunk = "auto";
  std::string head = "auto";
  Attention attention = Attention::kAuto;

  /// Of one step.
  std::int64_t sequences() const { return batch_size * accumulate; }

  bool operator==(const RunConfig&) const = default;
};

}  // namespace ferry
