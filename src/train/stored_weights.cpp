// SPDX-License-Identifier: Apache-2.0
// Checks of stored tensors, and their pieces.
#include "train/stored_weights.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <set>
#include <vector>

#include "core/error.h"
#include "train/checkpoint_store.h"

namespace ferry {
namespace {

constexpr std::int64_t kPieceElems = std::int64_t{1} << 20;  // 4 MiB of f32: large enough to stream at full speed
constexpr const char* kEmbedding = "model.embed_tokens.weight";
constexpr const char* kHead = "lm_head.weight";

/// Position tables that old exports hold; the model computes them.
bool is_derived(const std::string& name) { return name.ends_with(".rotary_emb.inv_freq"); }

void check_tied_head(const std::string& origin, const ModelFolder& folder) {
  const SafetensorsEntry& head = folder.tensor(kHead);
  const SafetensorsEntry& table = folder.tensor(kEmbedding);
  const bool equal =
      head.shape == table.shape && head.dtype == table.dtype && std::ranges::equal(head.bytes, table.bytes);
  FERRY_CHECK(
      equal, kIo,
      "'{}': the model ties its embeddings, but {} differs from {}: set tie_word_embeddings to false in config.json, "
      "or remove the tensor",
      origin, kHead, kEmbedding);
}

void reach(std::optional<ReadAlongCheck>& check, const SafetensorsEntry& entry, std::int64_t end_elem) {
  if (check) check->reach(entry.bytes.data() + end_elem * (safetensors_dtype_bits(entry.dtype) / 8));
}

}  // namespace

void check_tensors(const std::string& origin, const ParameterTable& table, const ModelFolder& folder) {
  std::set<std::string> expected;
  for (const ParameterInfo& info : table.parameters()) {
    expected.insert(info.name);
    FERRY_CHECK(folder.contains(info.name), kIo,
                "'{}' lacks the tensor {} {}: the save is incomplete or of another model", origin, info.name,
                describe_shape(info.shape));
    const SafetensorsEntry& entry = folder.tensor(info.name);
    FERRY_CHECK(entry.shape == info.shape, kIo, "'{}': tensor {} has shape {}, its config.json asks for {}", origin,
                info.name, describe_shape(entry.shape), describe_shape(info.shape));
  }
  for (const std::string& name : folder.names()) {
    if (expected.contains(name) || is_derived(name)) continue;
    FERRY_CHECK(table.tied() && name == kHead, kIo,
                "'{}' holds the tensor {} {}, which a Llama of its config.json does not have: training would drop it",
                origin, name, describe_shape(folder.tensor(name).shape));
  }
  if (table.tied() && folder.contains(kHead)) check_tied_head(origin, folder);
}

ModelConfig load_stored_config(const std::filesystem::path& folder) {
  if (const auto checksums = CheckpointChecksums::find(folder)) checksums->check_file("config.json");
  return load_model_config(folder);
}

StoredWeights::StoredWeights(const std::filesystem::path& folder, Precision precision)
    : origin_(folder.string()),
      config_(load_stored_config(folder)),
      table_(config_, config_.vocab_size),
      folder_(folder) {
  check_tensors(origin_, table_, folder_);
  if (precision == Precision::kMaster) open_masters(folder / kCheckpointOptimizer);
  if (const auto checksums = CheckpointChecksums::find(folder)) open_checks(*checksums);
}

void StoredWeights::open_checks(const CheckpointChecksums& checksums) {
  const SafetensorsFile& model = folder_.files().front();
  FERRY_CHECK(model.path().filename() == kCheckpointModel, kIo, "'{}' holds {}, but no {}", origin_,
              kCheckpointChecksums, kCheckpointModel);
  model_check_.emplace(model, checksums.by_name().at(kCheckpointModel));
  if (has_masters()) optimizer_check_.emplace(*optimizer_, checksums.by_name().at(kCheckpointOptimizer));
}

void StoredWeights::open_masters(const std::filesystem::path& path) {
  std::error_code failure;
  if (!std::filesystem::exists(path, failure)) return;
  optimizer_.emplace(path);
  for (const ParameterInfo& info : table_.parameters()) {
    const SafetensorsEntry* low = low_half_of(info);
    if (low == nullptr) continue;
    const bool fits = low->dtype == "I16" && low->shape == info.shape && folder_.tensor(info.name).dtype == "BF16";
    FERRY_CHECK(fits, kIo, "{}: tensor {} is {} {}, which is no low half of {} {} {}", path.string(), low->name,
                low->dtype, describe_shape(low->shape), info.name, folder_.tensor(info.name).dtype,
                describe_shape(info.shape));
    ++n_masters_;
  }
}

const SafetensorsEntry* StoredWeights::low_half_of(const ParameterInfo& info) const {
  return optimizer_ ? optimizer_->find(info.name + ".weight_low") : nullptr;
}

DType StoredWeights::dtype() const {
  const bool all_bf16 = std::ranges::all_of(
      table_.parameters(), [this](const ParameterInfo& info) { return folder_.tensor(info.name).dtype == "BF16"; });
  return all_bf16 ? DType::kBf16 : DType::kF32;
}

// The high half was rounded, so the low one is signed.
void StoredWeights::add_low_half(const ParameterInfo& info, std::int64_t first, std::span<float> values) {
  const SafetensorsEntry* entry = low_half_of(info);
  if (entry == nullptr) return;
  std::vector<std::int16_t> low(values.size());
  reach(optimizer_check_, *entry, first + std::ssize(values));
  read_tensor(optimizer_->path().string(), *entry,
              {.shape = info.shape,
               .dtype = DType::kI16,
               .destination = low.data(),
               .first_elem = first,
               .n_elems = std::ssize(values)});
  for (std::size_t i = 0; i < low.size(); ++i) {
    const auto high = std::bit_cast<std::uint32_t>(values[i]);
    values[i] = std::bit_cast<float>(high + static_cast<std::uint32_t>(std::int32_t{low[i]}));
  }
}

void StoredWeights::read(const ParameterInfo& info, const PieceFn& fn) {
  std::vector<float> values;
  for (std::int64_t first = 0; first < info.elems; first += kPieceElems) {
    const std::int64_t n_elems = std::min(kPieceElems, info.elems - first);
    values.resize(static_cast<std::size_t>(n_elems));
    reach(model_check_, folder_.tensor(info.name), first + n_elems);
    folder_.read_into(info.name, {.shape = info.shape,
                                  .dtype = DType::kF32,
                                  .destination = values.data(),
                                  .first_elem = first,
                                  .n_elems = n_elems});
    add_low_half(info, first, values);
    const auto bad = std::ranges::find_if(values, [](float value) { return !std::isfinite(value); });
    FERRY_CHECK(bad == values.end(), kIo,
                "'{}': element {} of tensor {} is {}: the save is damaged, use an earlier one", origin_,
                first + (bad - values.begin()), info.name, *bad);
    fn(first, values);
  }
}

void StoredWeights::check_bytes() {
  if (model_check_) model_check_->finish();
  if (optimizer_check_) optimizer_check_->finish();
}

}  // namespace ferry
