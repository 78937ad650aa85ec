// SPDX-License-Identifier: Apache-2.0
// Weights between an engine and a Hugging Face folder, streamed in pieces: no second copy of the model in memory.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "config/model_config.h"
#include "io/checksum.h"
#include "offload/engine.h"
#include "train/stored_weights.h"

namespace ferry {

/// Throws Error{kConfig} naming the first field in which the folder's model computes something else than `wanted`.
/// `origin` (the folder) begins the message.
void check_same_model(const std::string& origin, const ModelConfig& wanted, const ModelConfig& found);

/// Fills all of the engine's weights from `folder` after both checks; nothing is set when one fails.
/// Throws Error{kConfig | kIo | kDType}. Error{kIo} when some are set already: for a weight that is not finite, and
/// where the bytes of a checkpoint are not those that were saved.
void load_weights(const std::filesystem::path& folder, const ModelConfig& config, Engine& engine);

/// Writes config.json and model.safetensors into `folder`, which exists: what they hold, by name. Throws as save_model.
std::map<std::string, FileDigest> write_model(const std::filesystem::path& folder, const ModelConfig& config,
                                              DType dtype, Engine& engine);

/// Writes config.json and model.safetensors in the engine's dtype; transformers loads the folder. It replaces an old
/// folder only when complete. Blocks until it is on the disk. Throws Error{kIo}; Error{kDevice} for
/// a weight that is not finite, and an old folder stays.
void save_model(const std::filesystem::path& folder, const ModelConfig& config, DType dtype, Engine& engine);

}  // namespace ferry
