// SPDX-License-Identifier: Apache-2.0
// A model written as a Hugging Face folder that transformers loads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "train/stored_weights.h"

namespace ferry {

struct ExportOptions {
  DType dtype = DType::kBf16;
  /// Largest file of weights; tensors are not cut. transformers writes the same size.
  std::int64_t shard_bytes = 5'000'000'000;
};

struct ExportResult {
  std::int64_t n_parameters = 0;
  std::int64_t weight_bytes = 0;
  std::vector<std::string> weight_files;
  std::vector<std::string> copied_files;  // tokenizer and generation settings
  bool has_masters = false;               // the weights are the exact f32 ones of a checkpoint in bf16
};

/// config.json, model.safetensors (above shard_bytes: numbered shards and an index), and those of
/// generation_config.json and the tokenizer's files that lie beside the source. The target appears when complete; an
/// existing one must be empty or an earlier export, and is replaced. The source is never written to. Throws Error{kIo |
/// kDType} naming the file or tensor; Error{kConfig} for a target that may not be replaced.
ExportResult export_model(const std::filesystem::path& source, const std::filesystem::path& target,
                          const ExportOptions& options);

}  // namespace ferry
