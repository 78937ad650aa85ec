// SPDX-License-Identifier: Apache-2.0
// Shards, index and the small files beside them.
#include "train/export_model.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/error.h"
#include "io/atomic_file.h"
#include "io/atomic_folder.h"
#include "io/printable.h"
#include "io/safetensors.h"
#include "train/companion_files.h"

namespace ferry {
namespace {

namespace fs = std::filesystem;

/// Marks a file of weights that may be replaced.
constexpr const char* kWriterKey = "writer";
constexpr const char* kWriter = "ferry export";
constexpr const char* kConfigFile = "config.json";
constexpr const char* kIndexFile = "model.safetensors.index.json";

bool is_own_weight_file(const fs::path& path) {
  try {
    const SafetensorsFile file(path);
    const auto found = file.metadata().find(kWriterKey);
    return found != file.metadata().end() && found->second == kWriter;
  } catch (const Error&) {
    return false;  // damaged, or no safetensors
  }
}

bool is_of_export(const fs::path& path) {
  if (path.extension() == ".safetensors") return is_own_weight_file(path);
  const std::string name = path.filename().string();
  return name == kConfigFile || name == kIndexFile || is_companion_file(name);
}

/// A file that no export writes; where there is none, but no weights either, any file.
std::string foreign_file(const fs::path& folder) {
  std::string any;
  bool has_weights = false;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    any = entry.path().filename().string();
    if (!is_of_export(entry.path())) return any;
    has_weights = has_weights || entry.path().extension() == ".safetensors";
  }
  return has_weights ? "" : any;
}

void check_target(const fs::path& source, const fs::path& target) {
  std::error_code failure;
  FERRY_CHECK(!target.empty(), kConfig, "the target is an empty name: give the folder to write");
  if (!fs::exists(target, failure)) return;
  const std::string shown = printable_name(target.string());
  FERRY_CHECK(fs::is_directory(target, failure), kConfig, "'{}' is a file: give a folder", shown);
  FERRY_CHECK(!fs::equivalent(source, target, failure), kConfig,
              "'{}' is the model itself: give the export a folder of its own", shown);
  const std::string foreign = foreign_file(target);
  FERRY_CHECK(foreign.empty(), kConfig,
              "'{}' is not empty and not an earlier export, it holds '{}': give a new folder, or move that away", shown,
              printable_name(foreign));
}

class Exporter {
 public:
  Exporter(StoredWeights& weights, const fs::path& folder, const ExportOptions& options)
      : weights_(weights), folder_(folder), options_(options) {}

  ExportResult write() {
    const bool f32 = options_.dtype == DType::kF32;
    write_file_atomically(folder_ / kConfigFile, to_hugging_face_json(weights_.config(), f32 ? "float32" : "bfloat16"));
    const auto shards = cut();
    for (std::size_t i = 0; i < shards.size(); ++i) write_shard(shard_name(i, shards.size()), shards[i]);
    weights_.check_bytes();  // before the target appears
    if (shards.size() > 1) write_index();
    result_.copied_files = copy_companion_files(weights_.origin(), folder_);
    result_.has_masters = weights_.has_masters();
    return std::move(result_);
  }

 private:
  using Shard = std::vector<const ParameterInfo*>;

  std::int64_t bytes_of(const ParameterInfo& info) const {
    return info.elems * static_cast<std::int64_t>(size_of(options_.dtype));
  }

  std::vector<Shard> cut() const {
    std::vector<Shard> shards(1);
    std::int64_t bytes = 0;
    for (const ParameterInfo& info : weights_.table().parameters()) {
      if (!shards.back().empty() && bytes + bytes_of(info) > options_.shard_bytes) {
        shards.emplace_back();
        bytes = 0;
      }
      shards.back().push_back(&info);
      bytes += bytes_of(info);
    }
    return shards;
  }

  static std::string shard_name(std::size_t index, std::size_t n_shards) {
    return n_shards == 1 ? "model.safetensors" : fmt::format("model-{:05}-of-{:05}.safetensors", index + 1, n_shards);
  }

  void write_shard(const std::string& name, const Shard& shard) {
    std::vector<SafetensorsSpec> specs;
    for (const ParameterInfo* info : shard) {
      specs.push_back({.name = info->name, .dtype = safetensors_dtype(options_.dtype), .shape = info->shape});
    }
    SafetensorsWriter writer(folder_ / name, std::move(specs), {{"format", "pt"}, {kWriterKey, kWriter}});
    std::vector<Bf16> rounded;
    for (const ParameterInfo* info : shard) {
      weights_.read(*info, [&](std::int64_t, std::span<const float> values) {
        if (options_.dtype == DType::kF32) return writer.append(info->name, std::as_bytes(values));
        rounded.resize(values.size());
        std::ranges::transform(values, rounded.begin(), to_bf16);
        writer.append(info->name, std::as_bytes(std::span<const Bf16>(rounded)));
      });
      file_of_[info->name] = name;
      result_.n_parameters += info->elems;
      result_.weight_bytes += bytes_of(*info);
    }
    writer.finish();
    result_.weight_files.push_back(name);
  }

  void write_index() const {
    const nlohmann::ordered_json index = {{"metadata", {{"total_size", result_.weight_bytes}}},
                                          {"weight_map", file_of_}};
    write_file_atomically(folder_ / kIndexFile, index.dump(2) + "\n");
  }

  StoredWeights& weights_;
  const fs::path& folder_;
  const ExportOptions& options_;
  std::map<std::string, std::string> file_of_;  // tensor -> shard
  ExportResult result_;
};

}  // namespace

ExportResult export_model(const fs::path& source, const fs::path& target, const ExportOptions& options) {
  using Precision = StoredWeights::Precision;
  StoredWeights weights(source, options.dtype == DType::kF32 ? Precision::kMaster : Precision::kStored);
  check_target(source, target);
  AtomicFolder folder(target);
  ExportResult result = Exporter(weights, folder.path(), options).write();
  folder.commit();
  return result;
}

}  // namespace ferry
