// SPDX-License-Identifier: Apache-2.0
// Import and export of weights under their Hugging Face names.
#include "train/weights_io.h"

#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "core/error.h"
#include "io/atomic_file.h"
#include "io/atomic_folder.h"
#include "io/safetensors.h"

namespace ferry {
namespace {

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

void load_weights(const std::filesystem::path& folder, const ModelConfig& config, Engine& engine) {
  StoredWeights stored(folder);
  check_same_model(folder.string(), config, stored.config());
  const auto& parameters = engine.parameters().parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    stored.read(parameters[i],
                [&](std::int64_t first, std::span<const float> values) { engine.set_parameter(i, first, values); });
  }
  stored.check_bytes();
}

std::map<std::string, FileDigest> write_model(const std::filesystem::path& folder, const ModelConfig& config,
                                              DType dtype, Engine& engine) {
  std::map<std::string, FileDigest> written;
  written["config.json"] = write_file_atomically(
      folder / "config.json", to_hugging_face_json(config, dtype == DType::kF32 ? "float32" : "bfloat16"));
  std::vector<SafetensorsSpec> specs;
  for (const ParameterInfo& info : engine.parameters().parameters()) {
    specs.push_back({.name = info.name, .dtype = safetensors_dtype(dtype), .shape = info.shape});
  }
  SafetensorsWriter writer(folder / "model.safetensors", std::move(specs));
  engine.for_each_piece([&](const ParameterInfo& info, std::int64_t first, TensorView piece) {
    check_finite(info, first, piece);
    writer.append(info.name, {static_cast<const std::byte*>(piece.data), piece.size_bytes()});
  });
  written["model.safetensors"] = writer.finish();
  return written;
}

void save_model(const std::filesystem::path& folder, const ModelConfig& config, DType dtype, Engine& engine) {
  AtomicFolder target(folder);
  write_model(target.path(), config, dtype, engine);
  target.commit();
}

}  // namespace ferry
