// SPDX-License-Identifier: Apache-2.0
// Import and export of weights under their Hugging Face names.
#include "train/weights_io.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "core/error.h"
#include "io/atomic_file.h"
#include "io/atomic_folder.h"
#include "io/safetensors.h"

namespace ferry {
namespace {

constexpr std::int64_t kPieceElems = std::int64_t{1} << 20;  // 4 MiB of f32: large enough to stream at full speed
constexpr const char* kEmbedding = "model.embed_tokens.weight";
constexpr const char* kHead = "lm_head.weight";

template <class T>
void check_field(const std::string& origin, const char* field, const T& wanted, const T& found) {
  FERRY_CHECK(wanted == found, kConfig,
              "'{}' holds another model: its {} is {}, this run's is {}; set `model` to that folder to train its shape",
              origin, field, found, wanted);
}

const char* name_of(RopeScaling::Type type) {
  switch (type) {
    case RopeScaling::Type::kDefault: return "default";
    case RopeScaling::Type::kLinear: return "linear";
    case RopeScaling::Type::kLlama3: return "llama3";
  }
  return "unknown";
}

void check_rope(const std::string& origin, const ModelConfig& wanted, const ModelConfig& found) {
  check_field(origin, "rope_theta", wanted.rope_theta, found.rope_theta);
  const RopeScaling& a = wanted.rope_scaling;
  const RopeScaling& b = found.rope_scaling;
  check_field<std::string>(origin, "rope_scaling type", name_of(a.type), name_of(b.type));
  if (a.type == RopeScaling::Type::kDefault) return;
  check_field(origin, "rope_scaling factor", a.factor, b.factor);
  if (a.type == RopeScaling::Type::kLinear) return;
  check_field(origin, "rope_scaling low_freq_factor", a.low_freq_factor, b.low_freq_factor);
  check_field(origin, "rope_scaling high_freq_factor", a.high_freq_factor, b.high_freq_factor);
  check_field(origin, "rope_scaling original_max_position_embeddings", a.original_max_position_embeddings,
              b.original_max_position_embeddings);
}

/// Position tables that old exports hold; the model computes them.
bool is_derived(const std::string& name) { return name.ends_with(".rotary_emb.inv_freq"); }

/// Calls fn(first, values) for pieces of a stored tensor, read as f32.
template <class Fn>
void for_each_stored_piece(const ModelFolder& folder, const ParameterInfo& info, Fn&& fn) {
  std::vector<float> values(static_cast<std::size_t>(std::min(info.elems, kPieceElems)));
  for (std::int64_t first = 0; first < info.elems; first += kPieceElems) {
    const std::int64_t n_elems = std::min(kPieceElems, info.elems - first);
    folder.read_into(info.name, {.shape = info.shape,
                                 .dtype = DType::kF32,
                                 .destination = values.data(),
                                 .first_elem = first,
                                 .n_elems = n_elems});
    fn(first, std::span<const float>(values.data(), static_cast<std::size_t>(n_elems)));
  }
}

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

void check_finite(const ParameterInfo& info, std::int64_t first, const TensorView& piece) {
  for (std::int64_t i = 0; i < piece.elems(); ++i) {
    const float value = piece.dtype == DType::kF32 ? piece.as<float>()[i] : to_f32(piece.as<Bf16>()[i]);
    FERRY_CHECK(std::isfinite(value), kDevice,
                "element {} of {} is {} after training: it diverged and nothing is saved; lower lr or weight_decay",
                first + i, info.name, value);
  }
}

}  // namespace

void check_same_model(const std::string& origin, const ModelConfig& wanted, const ModelConfig& found) {
  check_field(origin, "vocab_size", wanted.vocab_size, found.vocab_size);
  check_field(origin, "hidden_size", wanted.hidden_size, found.hidden_size);
  check_field(origin, "intermediate_size", wanted.intermediate_size, found.intermediate_size);
  check_field(origin, "num_hidden_layers", wanted.n_layers, found.n_layers);
  check_field(origin, "num_attention_heads", wanted.n_heads, found.n_heads);
  check_field(origin, "num_key_value_heads", wanted.n_kv_heads, found.n_kv_heads);
  check_field(origin, "head_dim", wanted.head_dim, found.head_dim);
  check_field(origin, "rms_norm_eps", wanted.rms_norm_eps, found.rms_norm_eps);
  check_rope(origin, wanted, found);
  check_field(origin, "tie_word_embeddings", wanted.tie_word_embeddings, found.tie_word_embeddings);
}

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

void load_weights(const std::filesystem::path& folder, const ModelConfig& config, Engine& engine) {
  const std::string origin = folder.string();
  check_same_model(origin, config, load_model_config(folder));
  const ModelFolder stored(folder);
  const ParameterTable& table = engine.parameters();
  check_tensors(origin, table, stored);
  for (std::size_t i = 0; i < table.parameters().size(); ++i) {
    const ParameterInfo& info = table.parameters()[i];
    for_each_stored_piece(stored, info, [&](std::int64_t first, std::span<const float> values) {
      const auto bad = std::ranges::find_if(values, [](float value) { return !std::isfinite(value); });
      FERRY_CHECK(bad == values.end(), kIo,
                  "'{}': element {} of tensor {} is {}: the save is damaged, use an earlier one", origin,
                  first + (bad - values.begin()), info.name, *bad);
      engine.set_parameter(i, first, values);
    });
  }
}

void save_model(const std::filesystem::path& folder, const ModelConfig& config, DType dtype, Engine& engine) {
  AtomicFolder target(folder);
  write_file_atomically(target.path() / "config.json",
                        to_hugging_face_json(config, dtype == DType::kF32 ? "float32" : "bfloat16"));
  std::vector<SafetensorsSpec> specs;
  for (const ParameterInfo& info : engine.parameters().parameters()) {
    specs.push_back({.name = info.name, .dtype = safetensors_dtype(dtype), .shape = info.shape});
  }
  SafetensorsWriter writer(target.path() / "model.safetensors", std::move(specs));
  engine.for_each_piece([&](const ParameterInfo& info, std::int64_t first, TensorView piece) {
    check_finite(info, first, piece);
    writer.append(info.name, {static_cast<const std::byte*>(piece.data), piece.size_bytes()});
  });
  writer.finish();
  target.commit();
}

}  // namespace ferry
