// SPDX-License-Identifier: Apache-2.0
// Built-in model shapes.
#include "config/presets.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <span>
#include <system_error>

#include "config/nearest.h"
#include "config/text_file.h"
#include "core/error.h"

namespace ferry {
namespace {

struct Preset {
  const char* name;
  ModelConfig config;
};

// Byte-level, 955,776 parameters.
ModelConfig tiny() {
  ModelConfig config;
  config.vocab_size = 256;
  config.hidden_size = 128;
  config.intermediate_size = 352;
  config.n_layers = 5;
  config.n_heads = 4;
  config.n_kv_heads = 2;
  config.head_dim = 32;
  config.max_position_embeddings = 1024;
  config.tie_word_embeddings = true;
  config.initializer_range = 0.05;  // narrow layers learn faster from larger weights than 0.02
  return config;
}

// What the Llama 3.1 and 3.2 text models share.
ModelConfig llama3(double rope_factor, bool tied) {
  ModelConfig config;
  config.vocab_size = 128256;
  config.n_kv_heads = 8;
  config.max_position_embeddings = 131072;
  config.rope_theta = 500000;
  config.rope_scaling = {RopeScaling::Type::kLlama3, rope_factor, 1, 4, 8192};
  config.tie_word_embeddings = tied;
  config.original_json = R"({"bos_token_id": 128000, "eos_token_id": 128001})";
  return config;
}

ModelConfig llama3_2_1b() {
  ModelConfig config = llama3(32, true);
  config.hidden_size = 2048;
  config.intermediate_size = 8192;
  config.n_layers = 16;
  config.n_heads = 32;
  config.head_dim = 64;
  return config;
}

ModelConfig llama3_2_3b() {
  ModelConfig config = llama3(32, true);
  config.hidden_size = 3072;
  config.intermediate_size = 8192;
  config.n_layers = 28;
  config.n_heads = 24;
  config.head_dim = 128;
  return config;
}

ModelConfig llama3_1_8b() {
  ModelConfig config = llama3(8, false);
  config.hidden_size = 4096;
  config.intermediate_size = 14336;
  config.n_layers = 32;
  config.n_heads = 32;
  config.head_dim = 128;
  return config;
}

std::span<const Preset> presets() {
  static const std::vector<Preset> table = {
      {"tiny", tiny()},
      {"llama-3.2-1b", llama3_2_1b()},
      {"llama-3.2-3b", llama3_2_3b()},
      {"llama-3.1-8b", llama3_1_8b()},
  };
  return table;
}

}  // namespace

std::vector<std::string_view> preset_names() {
  std::vector<std::string_view> names;
  for (const Preset& preset : presets()) names.emplace_back(preset.name);
  return names;
}

ModelConfig resolve_model(const std::string& model) {
  const auto found = std::ranges::find_if(presets(), [&](const Preset& preset) { return preset.name == model; });
  if (found != presets().end()) return found->config;
  std::error_code error;
  if (std::filesystem::exists(model, error)) return load_model_config(model);
  const std::vector<std::string_view> names = preset_names();
  detail::throw_error(
      ErrorKind::kConfig,
      fmt::format("model '{}' is neither a preset nor an existing folder or config.json{} (presets: {})", shown(model),
                  did_you_mean(model, names), fmt::join(names, ", ")));
}

}  // namespace ferry
