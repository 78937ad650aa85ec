// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "catch.h"
#include "config/config_file.h"
#include "config/presets.h"

namespace ferry {
namespace {

namespace fs = std::filesystem;

const fs::path kRoot = FERRY_SOURCE_DIR;

std::vector<fs::path> bundled(const std::string& suffix) {
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(kRoot / "configs")) {
    if (entry.path().extension() == suffix) files.push_back(entry.path());
  }
  std::ranges::sort(files);
  return files;
}

RunConfig bundled_config(const std::string& name) {
  RunConfig config;
  read_config_file(kRoot / "configs" / name, config);
  return config;
}

// Configs are meant to be used in the root of the source tree.
ModelConfig model_from_root(const std::string& model) {
  return resolve_model(fs::exists(kRoot / model) ? (kRoot / model).string() : model);
}

TEST_CASE("every bundled config parses, and its model and data are there") {
  REQUIRE(bundled(".toml").size() >= 5);
  for (const fs::path& file : bundled(".toml")) {
    INFO(file);
    RunConfig config;
    read_config_file(file, config);
    const ModelConfig model = model_from_root(config.model);
    model.validate();
    CHECK(config.seq_len <= model.max_position_embeddings);
    CHECK((config.steps > 0) != (config.epochs > 0));
    CHECK(config.output == "out/" + file.stem().string());
    REQUIRE_FALSE(config.train_data.empty());
    for (const std::string& path : config.train_data) CHECK(fs::is_regular_file(kRoot / path));
    for (const std::string& path : config.val_data) CHECK(fs::is_regular_file(kRoot / path));
  }
}

TEST_CASE("every bundled model is valid") {
  REQUIRE_FALSE(bundled(".json").empty());
  for (const fs::path& file : bundled(".json")) {
    INFO(file);
    load_model_config(file).validate();
  }
}

TEST_CASE("the model of the 1B experiment is Llama-3.2-1B with 2048 positions") {
  const ModelConfig model = load_model_config(kRoot / "configs/llama3.2-1b.json");
  const ModelConfig expected = resolve_model("llama-3.2-1b");
  CHECK(model.max_position_embeddings == 2048);
  CHECK(model.rope_scaling == expected.rope_scaling);
  CHECK(model.rope_theta == expected.rope_theta);
  CHECK(model.vocab_size == expected.vocab_size);
  CHECK(model.hidden_size == expected.hidden_size);
  CHECK(model.intermediate_size == expected.intermediate_size);
  CHECK(model.n_layers == expected.n_layers);
  CHECK(model.n_heads == expected.n_heads);
  CHECK(model.n_kv_heads == expected.n_kv_heads);
  CHECK(model.head_dim == expected.head_dim);
  CHECK(model.rms_norm_eps == expected.rms_norm_eps);
  CHECK(model.initializer_range == expected.initializer_range);
  CHECK(model.tie_word_embeddings);
}

TEST_CASE("the variants of the 1B experiment differ from it in one key") {
  const RunConfig experiment = bundled_config("llama3.2-1b.toml");
  CHECK(experiment.optimizer_state == RunConfig::OptimizerState::kBf16);
  CHECK(experiment.rounding == RunConfig::Rounding::kNearest);
  CHECK(experiment.offload == RunConfig::Offload::kAll);

  RunConfig exact = bundled_config("llama3.2-1b-f32.toml");
  CHECK(exact.optimizer_state == RunConfig::OptimizerState::kF32);
  exact.optimizer_state = experiment.optimizer_state;
  exact.rounding = experiment.rounding;  // exact state rounds nothing
  exact.output = experiment.output;
  CHECK(exact == experiment);

  RunConfig resident = bundled_config("llama3.2-1b-resident.toml");
  CHECK(resident.offload == RunConfig::Offload::kNone);
  resident.offload = experiment.offload;
  resident.output = experiment.output;
  CHECK(resident == experiment);

  RunConfig layers = bundled_config("llama3.2-1b-original-layout.toml");
  CHECK(layers.offload == RunConfig::Offload::kLayers);
  layers.offload = experiment.offload;
  layers.output = experiment.output;
  CHECK(layers == experiment);

  RunConfig large = bundled_config("llama3.1-8b.toml");
  large.model = experiment.model;
  large.output = experiment.output;
  CHECK(large == experiment);
}

}  // namespace
}  // namespace ferry
