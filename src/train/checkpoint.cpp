// SPDX-License-Identifier: Apache-2.0
// Writing and reading the files of a checkpoint.
#include "train/checkpoint.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/log.h"
#include "io/atomic_file.h"
#include "io/atomic_folder.h"
#include "io/mapped_file.h"
#include "io/printable.h"
#include "io/safetensors.h"
#include "train/checkpoint_checksums.h"
#include "train/checkpoint_store.h"
#include "train/stopwatch.h"
#include "train/weights_io.h"

namespace ferry {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMetrics = "metrics.jsonl";
constexpr std::size_t kMaxStateBytes = std::size_t{64} << 20;

using Digests = std::map<std::string, FileDigest>;

/// An array of AdamW and its suffix in the names of tensors.
struct StateArray {
  ParameterArray array;
  const char* suffix;
};
constexpr std::array<StateArray, 3> kStateArrays{{{ParameterArray::kFirstMoment, "first_moment"},
                                                  {ParameterArray::kSecondMoment, "second_moment"},
                                                  {ParameterArray::kWeightLow, "weight_low"}}};

std::string tensor_name(const ParameterInfo& info, const StateArray& array) {
  return fmt::format("{}.{}", info.name, array.suffix);
}

/// One array of one parameter, as the engine keeps it.
struct KeptArray {
  std::size_t parameter = 0;
  ParameterArray array = ParameterArray::kWeight;
  SafetensorsSpec spec;
};

std::vector<KeptArray> kept_weights(const Engine& engine) {
  std::vector<KeptArray> kept;
  for (const ParameterInfo& info : engine.parameters().parameters()) {
    const DType dtype = engine.dtype_of(ParameterArray::kWeight, info).value();
    kept.push_back({kept.size(), ParameterArray::kWeight, {info.name, safetensors_dtype(dtype), info.shape}});
  }
  return kept;
}

/// What AdamW keeps, array by array, wide types first as safetensors asks for; frozen parameters have none.
std::vector<KeptArray> kept_state(const Engine& engine) {
  std::vector<KeptArray> kept;
  const std::vector<ParameterInfo>& parameters = engine.parameters().parameters();
  for (const StateArray& array : kStateArrays) {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const std::optional<DType> dtype = engine.dtype_of(array.array, parameters[i]);
      if (!dtype) continue;
      kept.push_back(
          {i, array.array, {tensor_name(parameters[i], array), safetensors_dtype(*dtype), parameters[i].shape}});
    }
  }
  std::ranges::stable_sort(kept, std::ranges::greater{},
                           [](const KeptArray& array) { return safetensors_dtype_bits(array.spec.dtype); });
  return kept;
}

FileDigest write_state_arrays(const fs::path& file, Engine& engine) {
  const std::vector<KeptArray> kept = kept_state(engine);
  std::vector<SafetensorsSpec> specs;
  std::vector<ParameterArray> order;
  for (const KeptArray& array : kept) {
    specs.push_back(array.spec);
    if (std::ranges::count(order, array.array) == 0) order.push_back(array.array);
  }
  SafetensorsWriter writer(file, std::move(specs));
  for (const ParameterArray array : order) {
    const StateArray& kind = *std::ranges::find(kStateArrays, array, &StateArray::array);
    engine.for_each_piece(array, [&](const ParameterInfo& info, std::int64_t, TensorView piece) {
      if (piece) writer.append(tensor_name(info, kind), {static_cast<std::byte*>(piece.data), piece.size_bytes()});
    });
  }
  return writer.finish();
}

CheckpointState state_of(const CheckpointParts& parts, const Digests& digests) {
  CheckpointState state{.run = parts.run,
                        .trainer = parts.trainer,
                        .applied_steps = parts.engine.step_counts().applied,
                        .file_bytes = {}};
  for (const auto& [name, digest] : digests) state.file_bytes[name] = digest.size_bytes;
  return state;
}

/// As xxh128sum writes them.
std::string checksum_lines(const Digests& digests) {
  std::string lines;
  for (const auto& [name, digest] : digests) lines += fmt::format("{}  {}\n", digest.checksum, name);
  return lines;
}

/// Every array once, and nothing else.
void check_tensors(const SafetensorsFile& file, const std::vector<KeptArray>& kept) {
  for (const KeptArray& array : kept) {
    const SafetensorsEntry* entry = file.find(array.spec.name);
    const std::string wanted = fmt::format("{} {}", array.spec.dtype, describe_shape(array.spec.shape));
    FERRY_CHECK(entry != nullptr, kIo, "{} lacks the tensor {} {}", file.path().string(), array.spec.name, wanted);
    const std::string found = fmt::format("{} {}", entry->dtype, describe_shape(entry->shape));
    FERRY_CHECK(found == wanted, kIo, "{}: tensor {} is {}, this run keeps {}", file.path().string(), array.spec.name,
                found, wanted);
  }
  FERRY_CHECK(file.entries().size() == kept.size(), kIo, "{} holds {} tensors, this run keeps {}", file.path().string(),
              file.entries().size(), kept.size());
}

void set_arrays(const SafetensorsFile& file, const std::vector<KeptArray>& kept, Engine& engine) {
  for (const KeptArray& array : kept) {
    engine.set_array(array.array, array.parameter, 0, file.find(array.spec.name)->bytes);
  }
}

}  // namespace

SaveMetrics save_checkpoint(const fs::path& folder, const CheckpointParts& parts) {
  const Stopwatch watch;
  parts.engine.finish();
  AtomicFolder target(folder);
  Digests digests = write_model(target.path(), parts.model, parts.dtype, parts.engine);
  digests[kCheckpointOptimizer] = write_state_arrays(target.path() / kCheckpointOptimizer, parts.engine);
  SaveMetrics saved{.step = parts.trainer.step,
                    .path = (folder.parent_path().filename() / folder.filename()).string(),
                    .bytes = digests[kCheckpointModel].size_bytes + digests[kCheckpointOptimizer].size_bytes,
                    .seconds = watch.seconds()};
  if (!parts.metrics.empty()) {
    digests[kMetrics] =
        copy_metrics(parts.metrics, target.path() / kMetrics, parts.planned ? to_json_line(saved) : std::string());
  }
  digests[kCheckpointStateFile] =
      write_file_atomically(target.path() / kCheckpointStateFile, to_json(state_of(parts, digests)));
  write_file_atomically(target.path() / kCheckpointChecksums, checksum_lines(digests));
  target.commit();
  return saved;
}

CheckpointState read_checkpoint_state(const fs::path& folder) {
  const fs::path path = folder / kCheckpointStateFile;
  return parse_checkpoint_state(read_whole_file(path, kMaxStateBytes), path.string());
}

Checkpoint::Checkpoint(fs::path folder) : folder_(std::move(folder)) {
  const CheckpointChecksums checksums(folder_);
  checksums.check_file(kCheckpointStateFile);
  state_ = read_checkpoint_state(folder_);
  for (const auto& [name, checksum] : checksums.by_name()) {
    if (name == kCheckpointStateFile) continue;
    const auto size = state_.file_bytes.find(name);
    FERRY_CHECK(size != state_.file_bytes.end(), kIo, "{} does not list {}", (folder_ / kCheckpointStateFile).string(),
                printable_name(name));
    checksums.check_file(name, size->second);
  }
}

fs::path Checkpoint::metrics() const { return state_.file_bytes.contains(kMetrics) ? folder_ / kMetrics : fs::path(); }

void Checkpoint::restore(Engine& engine) const {
  const SafetensorsFile weights(folder_ / kCheckpointModel);
  const SafetensorsFile state(folder_ / kCheckpointOptimizer);
  const std::vector<KeptArray> weight_arrays = kept_weights(engine);
  const std::vector<KeptArray> state_arrays = kept_state(engine);
  check_tensors(weights, weight_arrays);
  check_tensors(state, state_arrays);
  set_arrays(weights, weight_arrays, engine);
  set_arrays(state, state_arrays, engine);
  engine.set_step_counts({.launched = state_.trainer.step, .applied = state_.applied_steps});
}

std::optional<Checkpoint> newest_whole_checkpoint(const fs::path& folder) {
  const std::vector<StoredCheckpoint> stored = list_checkpoints(folder);
  for (auto it = stored.rbegin(); it != stored.rend(); ++it) {
    try {
      return Checkpoint(it->folder);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kIo) throw;
      log::warn("{}: this checkpoint is left out, the one before it is tried", error.what());
    }
  }
  FERRY_CHECK(stored.empty(), kIo,
              "none of the {} checkpoints in '{}' is whole: give another output, or remove them to start anew",
              stored.size(), printable_name(folder.string()));
  return std::nullopt;
}

}  // namespace ferry
