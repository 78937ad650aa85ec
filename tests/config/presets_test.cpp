// SPDX-License-Identifier: Apache-2.0
#include "config/presets.h"

#include "catch.h"
#include "temp_file.h"
#include "thrown.h"

namespace ferry {
namespace {

// Parameters of a Llama, counted here on their own.
std::int64_t n_parameters(const ModelConfig& c) {
  const std::int64_t attention = c.hidden_size * c.head_dim * (2 * c.n_heads + 2 * c.n_kv_heads);
  const std::int64_t layer = attention + 3 * c.hidden_size * c.intermediate_size + 2 * c.hidden_size;
  const std::int64_t embedding = c.vocab_size * c.hidden_size;
  return c.n_layers * layer + (c.tie_word_embeddings ? 1 : 2) * embedding + c.hidden_size;
}

TEST_CASE("presets are valid and have the published number of parameters") {
  for (std::string_view name : preset_names()) resolve_model(std::string(name)).validate();
  CHECK(n_parameters(resolve_model("tiny")) == 955'776);
  CHECK(n_parameters(resolve_model("llama-3.2-1b")) == 1'235'814'400);
  CHECK(n_parameters(resolve_model("llama-3.2-3b")) == 3'212'749'824);
  CHECK(n_parameters(resolve_model("llama-3.1-8b")) == 8'030'261'248);
}

TEST_CASE("the rope factor is 32 for Llama 3.2 and 8 for Llama 3.1") {
  const RopeScaling small = resolve_model("llama-3.2-1b").rope_scaling;
  CHECK(small == RopeScaling{RopeScaling::Type::kLlama3, 32, 1, 4, 8192});
  CHECK(resolve_model("llama-3.2-3b").rope_scaling == small);
  CHECK(resolve_model("llama-3.1-8b").rope_scaling == RopeScaling{RopeScaling::Type::kLlama3, 8, 1, 4, 8192});
  CHECK(resolve_model("llama-3.1-8b").rope_theta == 500000);
}

TEST_CASE("a model may be a folder or a config.json") {
  const TempFolder folder;
  const auto file = folder.write("config.json", to_hugging_face_json(resolve_model("tiny"), "float32"));
  CHECK(resolve_model(folder.path().string()).hidden_size == 128);
  CHECK(resolve_model(file.string()).hidden_size == 128);
}

TEST_CASE("an unknown model lists the presets and the nearest one") {
  CHECK(thrown([] { resolve_model("llama3.2-1b"); }) ==
        "config: model 'llama3.2-1b' is neither a preset nor an existing folder or config.json: did you mean "
        "'llama-3.2-1b'? (presets: tiny, llama-3.2-1b, llama-3.2-3b, llama-3.1-8b)");
}

TEST_CASE("a folder without config.json is named") {
  const TempFolder folder;
  CHECK(thrown([&] { resolve_model(folder.path().string()); }) ==
        "io: " + folder.path().string() + "/config.json: no such file");
}

}  // namespace
}  // namespace ferry
