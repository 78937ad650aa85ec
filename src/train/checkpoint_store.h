// SPDX-License-Identifier: Apache-2.0
// The checkpoints of a run: OUTPUT/checkpoints/step-00000100 and the like.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace ferry {

inline constexpr const char* kCheckpointModel = "model.safetensors";
inline constexpr const char* kCheckpointOptimizer = "optimizer.safetensors";
inline constexpr const char* kCheckpointStateFile = "state.json";
inline constexpr const char* kCheckpointChecksums = "checksums.xxh128";

/// "step-00000100"
std::string checkpoint_name(std::int64_t step);

struct StoredCheckpoint {
  std::int64_t step = 0;
  std::filesystem::path folder;
};

/// Folders with the name of a checkpoint, by step; whether they are whole is not looked at. Empty when `folder` does
/// not exist.
std::vector<StoredCheckpoint> list_checkpoints(const std::filesystem::path& folder);

/// Removes what processes that died while saving have left. Throws Error{kIo}.
void tidy_checkpoints(const std::filesystem::path& folder);

/// Removes checkpoints before `step` so that at most `keep_last` >= 1 are left, that of `step` included; later ones
/// stay. Only folders that hold a checkpoint's files, and files only, are removed. What cannot be removed is a warning.
void prune_checkpoints(const std::filesystem::path& folder, std::int64_t step, std::int64_t keep_last);

/// Throws Error{kIo} unless `keep_last` + 1 checkpoints, beside those that are there, and a final model fit on the disk
/// of `output`.
void check_checkpoint_space(const std::filesystem::path& output, std::int64_t keep_last, std::size_t checkpoint_bytes,
                            std::size_t model_bytes);

/// Throws Error{kIo} unless a final model fits on the disk of `output`.
void check_model_space(const std::filesystem::path& output, std::size_t model_bytes);

}  // namespace ferry
