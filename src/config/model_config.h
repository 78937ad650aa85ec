// SPDX-License-Identifier: Apache-2.0
// The shape of a Llama model, and its Hugging Face config.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace ferry {

/// rope_scaling of config.json; see transformers' modeling_rope_utils for the formulas.
struct RopeScaling {
  enum class Type { kDefault, kLinear, kLlama3 };
  Type type = Type::kDefault;
  double factor = 1;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  std::int64_t original_max_position_embeddings = 8192;

  bool operator==(const RopeScaling&) const = default;
};

/// Names follow Hugging Face's LlamaConfig where the meaning is the same.
struct ModelConfig {
  std::int64_t vocab_size = 0;
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;
  std::int64_t n_layers = 0;
  std::int64_t n_heads = 0;
  std::int64_t n_kv_heads = 0;
  std::int64_t head_dim = 0;  // may differ from hidden_size / n_heads
  std::int64_t max_position_embeddings = 2048;
  double rms_norm_eps = 1e-5;
  double rope_theta = 10000;
  RopeScaling rope_scaling;
  bool tie_word_embeddings = false;
  double initializer_range = 0.02;
  std::string original_json;  // the file as read: export keeps the fields that ferry does not interpret

  /// Throws Error{kConfig} naming the first field that is out of range or contradicts another.
  void validate() const;
};

/// Reads `path`, a config.json or a folder that holds one. Missing head_dim and num_key_value_heads take Hugging Face's
/// defaults; bias keys set true, other architectures and unknown rope types are refused by name.
/// Throws Error{kIo} (unreadable, not JSON) or Error{kConfig} (field, got, expected).
ModelConfig load_model_config(const std::filesystem::path& path);

/// config.json text that transformers loads; torch_dtype is "float32" or "bfloat16".
std::string to_hugging_face_json(const ModelConfig& config, const std::string& torch_dtype);

}  // namespace ferry
