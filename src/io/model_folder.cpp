// SPDX-License-Identifier: Apache-2.0
// Index parsing and lookup over shards.
#include "io/model_folder.h"

#include <fmt/core.h>

#include "core/error.h"
#include "io/json_events.h"
#include "io/printable.h"

namespace ferry {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLargestIndexBytes = 64U << 20;
constexpr int kIndexDepth = 8;  // "metadata" may hold anything; its content is not used

using WeightMap = std::map<std::string, std::string>;  // tensor name -> file name

void check_shard_name(const std::string& index, const std::string& tensor, const std::string& shard) {
  const bool plain = shard.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
  FERRY_CHECK(plain && shard.ends_with(".safetensors"), kIo,
              "{}: tensor '{}' is mapped to '{}', expected the name of a .safetensors file of the same folder", index,
              printable_name(tensor), printable_name(shard));
}

WeightMap read_index(const fs::path& path) {
  const std::string origin = path.string();
  WeightMap map;
  bool has_map = false;
  read_json_file(path, kLargestIndexBytes, kIndexDepth, [&](const JsonEvent& event) {
    if (event.path.empty() || event.path[0] != "weight_map") return;
    const bool is_map = event.path.size() == 1;
    const auto expected = is_map ? JsonEvent::Kind::kObject : JsonEvent::Kind::kString;
    FERRY_CHECK(event.kind == expected, kIo, "{}: weight_map{} is {}, expected {}", origin,
                is_map ? "" : fmt::format(" of '{}'", printable_name(event.path[1])), describe(event),
                is_map ? "an object" : "a file name");
    has_map = true;
    if (is_map) return;
    const std::string shard(event.text);
    check_shard_name(origin, event.path[1], shard);
    map[event.path[1]] = shard;
  });
  FERRY_CHECK(has_map, kIo, "{}: no weight_map", origin);
  return map;
}

}  // namespace

ModelFolder::ModelFolder(const fs::path& folder) : folder_(folder) {
  const fs::path single = folder / "model.safetensors";
  const fs::path index = folder / "model.safetensors.index.json";
  std::error_code failure;
  FERRY_CHECK(fs::is_directory(folder, failure), kIo, "{} is no folder: expected one with model.safetensors",
              folder.string());
  if (fs::exists(single, failure)) {
    add_file(single);
  } else if (fs::exists(index, failure)) {
    open_shards(index);
  } else {
    const bool has_pickle = fs::exists(folder / "pytorch_model.bin", failure) ||
                            fs::exists(folder / "pytorch_model.bin.index.json", failure);
    FERRY_CHECK(false, kIo, "{} has neither model.safetensors nor model.safetensors.index.json{}", folder.string(),
                has_pickle ? "; pytorch_model.bin is not read: save the model with safe_serialization=True" : "");
  }
}

void ModelFolder::add_file(const fs::path& path) {
  files_.emplace_back(path);
  for (const SafetensorsEntry& entry : files_.back().entries()) {
    const auto [place, is_new] = tensors_.emplace(entry.name, Location{files_.size() - 1, &entry});
    FERRY_CHECK(is_new, kIo, "{}: tensor '{}' is in {} too", path.string(), printable_name(entry.name),
                files_[place->second.file].path().filename().string());
  }
}

void ModelFolder::open_shards(const fs::path& index) {
  const WeightMap map = read_index(index);
  std::map<std::string, std::size_t> file_of_shard;
  for (const auto& [tensor, shard] : map) {
    if (!file_of_shard.try_emplace(shard, files_.size()).second) continue;
    std::error_code failure;
    FERRY_CHECK(fs::exists(folder_ / shard, failure), kIo, "{}: {} is missing; it holds tensor '{}'", index.string(),
                printable_name(shard), printable_name(tensor));
    add_file(folder_ / shard);
  }
  for (const auto& [tensor, shard] : map) {
    const auto found = tensors_.find(tensor);
    FERRY_CHECK(found != tensors_.end() && found->second.file == file_of_shard[shard], kIo,
                "{}: tensor '{}' is not in {}", index.string(), printable_name(tensor), printable_name(shard));
  }
  for (const auto& [tensor, place] : tensors_) {
    FERRY_CHECK(map.contains(tensor), kIo, "{}: tensor '{}' of {} is not listed", index.string(),
                printable_name(tensor), files_[place.file].path().filename().string());
  }
}

std::vector<std::string> ModelFolder::names() const {
  std::vector<std::string> names;
  names.reserve(tensors_.size());
  for (const auto& [name, place] : tensors_) names.push_back(name);
  return names;
}

const ModelFolder::Location& ModelFolder::locate(std::string_view name) const {
  const auto found = tensors_.find(name);
  FERRY_CHECK(found != tensors_.end(), kIo, "{}: no tensor '{}' among its {}", folder_.string(), printable_name(name),
              tensors_.size());
  return found->second;
}

const SafetensorsEntry& ModelFolder::tensor(std::string_view name) const { return *locate(name).entry; }

void ModelFolder::read_into(std::string_view name, const TensorRead& read) const {
  const Location& place = locate(name);
  read_tensor(files_[place.file].path().string(), *place.entry, read);
}

}  // namespace ferry
