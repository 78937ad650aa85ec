// SPDX-License-Identifier: Apache-2.0
// Tests of train/weights_io.h: what is saved is what is loaded, and one test per message.
#include "train/weights_io.h"

#include <cmath>
#include <functional>

#include "catch.h"
#include "io/safetensors.h"
#include "thrown.h"
#include "train/tiny_run.h"

using namespace ferry;
using namespace ferry::test;

namespace {

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

struct StoredTensor {
  SafetensorsSpec spec;
  std::vector<float> values;
};

/// The tensors of `config`, counted up so that all differ.
std::vector<StoredTensor> tensors_of(const ModelConfig& config) {
  std::vector<StoredTensor> tensors;
  float next = 0;
  const ParameterTable table(config, config.vocab_size);
  for (const ParameterInfo& info : table.parameters()) {
    StoredTensor tensor{{info.name, "F32", info.shape}, {}};
    for (std::int64_t i = 0; i < info.elems; ++i) tensor.values.push_back(next += 1e-4F);
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

void write_folder(const std::filesystem::path& folder, const ModelConfig& config,
                  const std::vector<StoredTensor>& tensors) {
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "config.json") << to_hugging_face_json(config, "float32");
  std::vector<SafetensorsSpec> specs;
  for (const StoredTensor& tensor : tensors) specs.push_back(tensor.spec);
  SafetensorsWriter writer(folder / "model.safetensors", specs);
  for (const StoredTensor& tensor : tensors) writer.append(tensor.spec.name, std::as_bytes(std::span(tensor.values)));
  writer.finish();
}

/// What load_weights throws for a folder whose tensors were changed by `change`.
std::string error_after(bool tied, const std::function<void(std::vector<StoredTensor>&)>& change) {
  TinyRun run(DType::kF32, tied);
  const auto before = fingerprint(*run.engine);
  std::vector<StoredTensor> tensors = tensors_of(run.config);
  change(tensors);
  write_folder(run.folder.path() / "model", run.config, tensors);
  const std::string message = thrown([&] { load_weights(run.folder.path() / "model", run.config, *run.engine); });
  if (message.empty()) return message;
  CHECK(contains(message, "model'"));
  if (!contains(message, "damaged")) CHECK(fingerprint(*run.engine) == before);
  return message;
}

/// What check_same_model throws when `change` is applied to the folder's config.
std::string difference(const std::function<void(ModelConfig&)>& change) {
  const ModelConfig wanted = byte_config();
  ModelConfig found = wanted;
  change(found);
  return thrown([&] { check_same_model("folder", wanted, found); });
}

}  // namespace

TEST_CASE("saved weights load to the same bits") {
  const DType dtype = GENERATE(DType::kF32, DType::kBf16);
  const bool tied = GENERATE(true, false);
  TinyRun source(dtype, tied);
  const auto folder = source.folder.path() / "model";
  save_model(folder, source.config, dtype, *source.engine);

  TinyRun target(dtype, tied);
  target.engine->initialize(8);
  CHECK(fingerprint(*target.engine) != fingerprint(*source.engine));
  load_weights(folder, target.config, *target.engine);
  CHECK(fingerprint(*target.engine) == fingerprint(*source.engine));
  CHECK(ModelFolder(folder).contains("lm_head.weight") == !tied);
}

TEST_CASE("a save replaces an older one") {
  TinyRun run;
  const auto folder = run.folder.path() / "model";
  save_model(folder, run.config, DType::kF32, *run.engine);
  run.engine->initialize(8);
  save_model(folder, run.config, DType::kF32, *run.engine);
  const auto saved = fingerprint(*run.engine);
  run.engine->initialize(7);
  load_weights(folder, run.config, *run.engine);
  CHECK(fingerprint(*run.engine) == saved);
}

TEST_CASE("a tied head that equals the embedding and derived position tables are accepted") {
  CHECK(error_after(true, [](auto& tensors) {
          StoredTensor head = tensors.front();
          head.spec.name = "lm_head.weight";
          tensors.push_back(head);
          tensors.push_back({{"model.layers.0.self_attn.rotary_emb.inv_freq", "F32", {1}}, {1}});
        }) == "");
}

TEST_CASE("a tied head that differs from the embedding is refused") {
  CHECK(contains(error_after(true,
                             [](auto& tensors) {
                               StoredTensor head = tensors.front();
                               head.spec.name = "lm_head.weight";
                               head.values[5] += 1;
                               tensors.push_back(head);
                             }),
                 "lm_head.weight differs from model.embed_tokens.weight"));
}

TEST_CASE("a missing tensor is named with its shape") {
  CHECK(contains(error_after(false, [](auto& tensors) { tensors.pop_back(); }),
                 "lacks the tensor lm_head.weight (256, 16)"));
}

TEST_CASE("a tensor of another shape is named with both shapes") {
  CHECK(contains(error_after(true,
                             [](auto& tensors) {
                               tensors[2].spec.shape = {8, 32};
                             }),
                 "tensor model.layers.0.self_attn.q_proj.weight has shape (8, 32), its config.json asks for (16, 16)"));
}

TEST_CASE("a tensor that the model does not have is named") {
  const auto add_bias = [](auto& tensors) {
    tensors.push_back({{"model.layers.0.self_attn.q_proj.bias", "F32", {16}}, std::vector<float>(16)});
  };
  CHECK(contains(error_after(true, add_bias), "holds the tensor model.layers.0.self_attn.q_proj.bias (16)"));
}

TEST_CASE("a weight that is not finite is named with its place") {
  CHECK(contains(error_after(true, [](auto& tensors) { tensors[3].values[9] = NAN; }),
                 "element 9 of tensor model.layers.0.self_attn.k_proj.weight is nan"));
}

TEST_CASE("a folder of another model is refused with the field and both values") {
  CHECK(difference([](ModelConfig& c) { c.vocab_size = 512; }) ==
        "config: 'folder' holds another model: its vocab_size is 512, this run's is 256; set `model` to that folder to "
        "train "
        "its shape");
  CHECK(contains(difference([](ModelConfig& c) { c.hidden_size = 8; }), "its hidden_size is 8"));
  CHECK(contains(difference([](ModelConfig& c) { c.intermediate_size = 8; }), "its intermediate_size is 8"));
  CHECK(contains(difference([](ModelConfig& c) { c.n_layers = 8; }), "its num_hidden_layers is 8"));
  CHECK(contains(difference([](ModelConfig& c) { c.n_heads = 8; }), "its num_attention_heads is 8"));
  CHECK(contains(difference([](ModelConfig& c) { c.n_kv_heads = 8; }), "its num_key_value_heads is 8"));
  CHECK(contains(difference([](ModelConfig& c) { c.head_dim = 4; }), "its head_dim is 4"));
  CHECK(contains(difference([](ModelConfig& c) { c.rms_norm_eps = 1e-6; }), "its rms_norm_eps is 1e-06"));
  CHECK(contains(difference([](ModelConfig& c) { c.rope_theta = 5e5; }), "its rope_theta is 500000"));
  CHECK(
      contains(difference([](ModelConfig& c) { c.tie_word_embeddings = false; }), "its tie_word_embeddings is false"));
  CHECK(contains(difference([](ModelConfig& c) { c.rope_scaling.type = RopeScaling::Type::kLlama3; }),
                 "its rope_scaling type is llama3"));
}

TEST_CASE("fields that change nothing may differ") {
  CHECK(difference([](ModelConfig& c) {
          c.max_position_embeddings = 4096;
          c.initializer_range = 1;
        }) == "");
}

TEST_CASE("rope scaling is compared where its type reads it") {
  ModelConfig wanted = byte_config();
  wanted.rope_scaling = {RopeScaling::Type::kLlama3, 8, 1, 4, 8192};
  ModelConfig found = wanted;
  found.rope_scaling.factor = 32;
  const auto compare = [&] { check_same_model("folder", wanted, found); };
  CHECK(contains(thrown(compare), "its rope_scaling factor is 32"));
  found = wanted;
  found.rope_scaling.original_max_position_embeddings = 4096;
  CHECK(contains(thrown(compare), "its rope_scaling original_max_position_embeddings is 4096"));
}

TEST_CASE("a folder that is not there is an io error") {
  TinyRun run;
  CHECK(thrown([&] { load_weights(run.folder.path() / "absent", run.config, *run.engine); }).starts_with("io: "));
}

TEST_CASE("weights that are not finite are not saved") {
  const DType dtype = GENERATE(DType::kF32, DType::kBf16);
  TinyRun run(dtype);
  run.engine->set_parameter(0, 37, std::vector<float>(1, INFINITY));
  const auto save = [&] { save_model(run.folder.path() / "model", run.config, dtype, *run.engine); };
  CHECK(contains(thrown(save), "device: element 37 of model.embed_tokens.weight is inf"));
  CHECK_FALSE(std::filesystem::exists(run.folder.path() / "model"));
}
