// SPDX-License-Identifier: Apache-2.0
// The weights of a Hugging Face model folder: one safetensors file, or several with an index.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "io/safetensors.h"
#include "io/tensor_read.h"

namespace ferry {

class ModelFolder {
 public:
  /// Opens model.safetensors, else the shards named by model.safetensors.index.json; checks every header and that index
  /// and shards name the same tensors, each once. A shard is a file of this folder: a path is refused.
  /// Throws Error{kIo}.
  explicit ModelFolder(const std::filesystem::path& folder);

  /// The files of weights.
  const std::vector<SafetensorsFile>& files() const { return files_; }

  /// Sorted.
  std::vector<std::string> names() const;
  bool contains(std::string_view name) const { return tensors_.contains(name); }

  /// Throws Error{kIo} when absent.
  const SafetensorsEntry& tensor(std::string_view name) const;

  /// read_tensor by name. Throws Error{kIo | kShape | kDType}.
  void read_into(std::string_view name, const TensorRead& read) const;

 private:
  struct Location {
    std::size_t file = 0;
    const SafetensorsEntry* entry = nullptr;
  };

  void open_shards(const std::filesystem::path& index);
  void add_file(const std::filesystem::path& path);
  const Location& locate(std::string_view name) const;

  std::filesystem::path folder_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, Location, std::less<>> tensors_;
};

}  // namespace ferry
