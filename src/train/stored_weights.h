// SPDX-License-Identifier: Apache-2.0
// The weights of a Hugging Face folder, read as f32 in pieces: no copy of the model in memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "config/model_config.h"
#include "io/model_folder.h"
#include "io/safetensors.h"
#include "model/parameter_table.h"
#include "train/checkpoint_checksums.h"

namespace ferry {

/// Every parameter there once with its shape, and no tensor more; lm_head.weight of a tied model must be absent or
/// equal to the embedding. `origin` (the folder) begins the message. Throws Error{kIo} naming the tensor.
void check_tensors(const std::string& origin, const ParameterTable& table, const ModelFolder& folder);

/// config.json of a model folder; that of a checkpoint is compared with its checksum first. Throws Error{kConfig |
/// kIo}.
ModelConfig load_stored_config(const std::filesystem::path& folder);

class StoredWeights {
 public:
  enum class Precision {
    kStored,  // model.safetensors as it is
    kMaster,  // the exact f32 weights behind those of a checkpoint in bf16, where it has them
  };

  /// Opens the folder and checks its tensors against its config.json. Throws Error{kConfig | kIo}.
  explicit StoredWeights(const std::filesystem::path& folder, Precision precision = Precision::kStored);

  const std::string& origin() const { return origin_; }
  const ModelConfig& config() const { return config_; }
  const ParameterTable& table() const { return table_; }
  /// bf16 where that holds all tensors exactly, else f32.
  DType dtype() const;

  /// Low halves of f32 weights are added.
  bool has_masters() const { return n_masters_ > 0; }

  /// Calls fn for pieces of a parameter, in order. Throws Error{kIo} for a value that is not finite, Error{kDType} for
  /// a tensor that is not floating point.
  using PieceFn = std::function<void(std::int64_t first, std::span<const float> values)>;
  void read(const ParameterInfo& info, const PieceFn& fn);

  /// To be called when all parameters have been read, before anything is made of them. In a checkpoint it compares the
  /// files with their checksums, which read() makes on its way; only of the optimizer's file, of which masters are but
  /// a part, it has to read the rest. Other folders have no checksums. Throws Error{kIo} naming a damaged file.
  void check_bytes();

 private:
  void open_checks(const CheckpointChecksums& checksums);
  void open_masters(const std::filesystem::path& path);
  const SafetensorsEntry* low_half_of(const ParameterInfo& info) const;
  void add_low_half(const ParameterInfo& info, std::int64_t first, std::span<float> values);

  std::string origin_;
  ModelConfig config_;
  ParameterTable table_;
  ModelFolder folder_;
  std::optional<SafetensorsFile> optimizer_;  // of a checkpoint: NAME.weight_low is the low half of NAME
  std::int64_t n_masters_ = 0;
  std::optional<ReadAlongCheck> model_check_;      // in a checkpoint
  std::optional<ReadAlongCheck> optimizer_check_;  // where low halves are read
};

}  // namespace ferry
