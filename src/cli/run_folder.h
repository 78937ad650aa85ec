// SPDX-License-Identifier: Apache-2.0
// The folder that a training run writes: config.toml, metrics.jsonl, loss.svg, checkpoints/ and model/.
#pragma once

#include <array>
#include <filesystem>
#include <string>
#include <string_view>

#include "io/posix_file.h"

namespace ferry {

/// What a run writes into its folder itself: three files and two folders.
inline constexpr std::array<std::string_view, 5> kRunFolderNames{"config.toml", "metrics.jsonl", "loss.svg", "model",
                                                                 "checkpoints"};

class RunFolder {
 public:
  enum class Use {
    kNew,      // of a run that starts: it may hold no weights
    kResumed,  // of a run that goes on from a checkpoint in this folder
  };

  /// Changes nothing on the disk. `log_file` may lie in the folder. Throws Error{kIo} when `folder` is a file, holds
  /// files that are not a run's, also in the model's folder, or, for a new run, weights or checkpoints: nothing of
  /// value is ever overwritten.
  RunFolder(std::filesystem::path folder, const std::filesystem::path& log_file, Use use = Use::kNew);

  /// Creates the folder, locks it until this object is destroyed, removes files that a killed run has half-written, and
  /// writes config.toml. Throws Error{kIo}, also when another run writes into the folder.
  void create(const std::string& config_toml);

  const std::filesystem::path& path() const { return folder_; }
  std::filesystem::path config() const { return folder_ / "config.toml"; }
  std::filesystem::path metrics() const { return folder_ / "metrics.jsonl"; }
  std::filesystem::path plot() const { return folder_ / "loss.svg"; }
  std::filesystem::path model() const { return folder_ / "model"; }
  std::filesystem::path checkpoints() const { return folder_ / "checkpoints"; }

 private:
  void check_no_weights() const;
  void check_model_files() const;
  void remove_leftovers() const;

  std::filesystem::path folder_;
  Use use_;
  FileDescriptor lock_;
};

/// `path` itself; where `path` is a run's folder, path/model or else its newest checkpoint. Throws Error{kIo} when none
/// of them holds a config.json.
std::filesystem::path find_model_folder(const std::filesystem::path& path);

}  // namespace ferry
