// SPDX-License-Identifier: Apache-2.0
#include "train/export_model.h"

#include <algorithm>
#include <array>
#include <map>

#include "io/file_test_helpers.h"
#include "train/tiny_run.h"
#include "train/weights_io.h"

using namespace ferry;
using namespace ferry::test;

namespace {

namespace fs = std::filesystem;

const fs::path kStories = fs::path(FERRY_FIXTURES) / "stories260k";

/// A saved model with rope scaling and a list of EOS ids in its config.
struct Saved {
  explicit Saved(DType dtype, bool tied = false) : run(dtype, tied), folder(run.folder.path() / "saved") {
    run.config.rope_scaling = {RopeScaling::Type::kLlama3, 32, 1, 4, 32};
    run.config.original_json = R"({"model_type":"llama","eos_token_id":[7,8],"pad_token_id":null})";
    save_model(folder, run.config, dtype, *run.engine);
  }

  fs::path path(const std::string& name) const { return run.folder.path() / name; }

  TinyRun run;
  fs::path folder;
};

/// Values of all tensors by name, as f32.
std::map<std::string, std::vector<float>> values_of(const fs::path& folder) {
  std::map<std::string, std::vector<float>> values;
  StoredWeights weights(folder);
  for (const ParameterInfo& info : weights.table().parameters()) {
    weights.read(info, [&](std::int64_t, std::span<const float> piece) {
      values[info.name].insert(values[info.name].end(), piece.begin(), piece.end());
    });
  }
  return values;
}

}  // namespace

TEST_CASE("stories260K goes through an export bit for bit, tokenizer and settings included") {
  const TemporaryFolder folder;
  const ExportResult result = export_model(kStories, folder / "out", {.dtype = DType::kF32});
  CHECK(result.n_parameters == 260'032);
  CHECK(result.weight_bytes == 4 * 260'032);
  CHECK(result.weight_files == std::vector<std::string>{"model.safetensors"});
  for (const char* name : {"generation_config.json", "tokenizer.json", "tokenizer_config.json"}) {
    INFO(name);
    CHECK(std::ranges::count(result.copied_files, name) == 1);
    CHECK(read_file(folder / "out" / name) == read_file(kStories / name));
  }
  const ModelFolder before(kStories);
  const ModelFolder after(folder / "out");
  REQUIRE(after.names() == before.names());
  for (const std::string& name : before.names()) {
    INFO(name);
    CHECK(std::ranges::equal(after.tensor(name).bytes, before.tensor(name).bytes));
  }
  CHECK_FALSE(fs::exists(folder / "out/expected.json"));
}

TEST_CASE("an export keeps what config.json says of rope and special tokens") {
  const Saved saved(DType::kF32);
  export_model(saved.folder, saved.path("out"), {.dtype = DType::kBf16});
  const ModelConfig config = load_model_config(saved.path("out"));
  CHECK(config.rope_scaling == saved.run.config.rope_scaling);
  CHECK(config.original_json.find("\"torch_dtype\": \"bfloat16\"") != std::string::npos);
  CHECK(config.original_json.find("\"eos_token_id\": [") != std::string::npos);
  CHECK(config.original_json.find("\"pad_token_id\": null") != std::string::npos);
}

TEST_CASE("f32 weights are rounded to the nearest bf16, bf16 weights widen exactly") {
  const Saved saved(DType::kF32);
  export_model(saved.folder, saved.path("bf16"), {.dtype = DType::kBf16});
  export_model(saved.path("bf16"), saved.path("f32"), {.dtype = DType::kF32});
  CHECK(ModelFolder(saved.path("bf16")).tensor("lm_head.weight").dtype == "BF16");
  CHECK(ModelFolder(saved.path("f32")).tensor("lm_head.weight").dtype == "F32");
  auto wanted = values_of(saved.folder);
  for (auto& [name, values] : wanted) {
    for (float& value : values) value = to_f32(to_bf16(value));
  }
  CHECK(values_of(saved.path("bf16")) == wanted);
  CHECK(values_of(saved.path("f32")) == wanted);
  CHECK(StoredWeights(saved.path("bf16")).dtype() == DType::kBf16);
  CHECK(StoredWeights(saved.path("f32")).dtype() == DType::kF32);
}

TEST_CASE("a checkpoint's f32 masters are exported exactly, its bf16 weights as they are") {
  TinyRun run(DType::kBf16, true);
  const fs::path folder = run.folder.path() / "checkpoint";
  TinyRun source(DType::kF32, true);  // the weights that the masters shall have
  save_model(run.folder.path() / "f32", source.config, DType::kF32, *source.engine);
  load_weights(run.folder.path() / "f32", run.config, *run.engine);
  save_model(folder, run.config, DType::kBf16, *run.engine);
  std::vector<SafetensorsSpec> specs;
  for (const ParameterInfo& info : run.engine->parameters().parameters()) {
    specs.push_back({info.name + ".weight_low", "I16", info.shape});
  }
  SafetensorsWriter writer(folder / "optimizer.safetensors", specs);
  run.engine->for_each_piece(ParameterArray::kWeightLow, [&](const ParameterInfo& info, std::int64_t, TensorView low) {
    writer.append(info.name + ".weight_low", {static_cast<std::byte*>(low.data), low.size_bytes()});
  });
  writer.finish();

  CHECK(export_model(folder, run.folder.path() / "exact", {.dtype = DType::kF32}).has_masters);
  CHECK(values_of(run.folder.path() / "exact") == values_of(run.folder.path() / "f32"));
  CHECK_FALSE(export_model(folder, run.folder.path() / "bf16", {.dtype = DType::kBf16}).has_masters);
  CHECK(values_of(run.folder.path() / "bf16") == values_of(folder));
  CHECK(values_of(folder) != values_of(run.folder.path() / "f32"));
  CHECK_FALSE(fs::exists(run.folder.path() / "exact/optimizer.safetensors"));
}

TEST_CASE("a low half of another type or shape is refused") {
  const Saved saved(DType::kBf16);
  SafetensorsWriter writer(saved.folder / "optimizer.safetensors", {{"lm_head.weight.weight_low", "I16", {2}}});
  const std::array<std::int16_t, 2> low{};
  writer.append("lm_head.weight.weight_low", std::as_bytes(std::span(low)));
  writer.finish();
  check_error(ErrorKind::kIo, {"lm_head.weight.weight_low is I16 (2), which is no low half of lm_head.weight BF16"},
              [&] { export_model(saved.folder, saved.path("out"), {.dtype = DType::kF32}); });
}

TEST_CASE("large exports are cut into shards with an index") {
  const Saved saved(DType::kF32);
  const ExportResult result =
      export_model(saved.folder, saved.path("out"), {.dtype = DType::kF32, .shard_bytes = 20'000});
  REQUIRE(result.weight_files.size() > 2);
  CHECK(result.weight_files.front() ==
        "model-00001-of-0000" + std::to_string(result.weight_files.size()) + ".safetensors");
  CHECK_FALSE(fs::exists(saved.path("out/model.safetensors")));
  CHECK(values_of(saved.path("out")) == values_of(saved.folder));
  for (const std::string& name : result.weight_files) {
    const SafetensorsFile file(saved.path("out") / name);
    std::size_t bytes = 0;
    for (const SafetensorsEntry& entry : file.entries()) bytes += entry.bytes.size();
    CHECK((bytes <= 20'000 || file.entries().size() == 1));
  }
  TinyRun loaded(DType::kF32, false);
  loaded.config.rope_scaling = saved.run.config.rope_scaling;
  load_weights(saved.path("out"), loaded.config, *loaded.engine);
  const std::string index = read_file(saved.path("out/model.safetensors.index.json"));
  CHECK(index.find("\"total_size\": " + std::to_string(result.weight_bytes)) != std::string::npos);
}

TEST_CASE("an earlier export is replaced, an empty folder used") {
  const Saved saved(DType::kF32);
  fs::create_directories(saved.path("out"));
  export_model(saved.folder, saved.path("out"), {.dtype = DType::kF32, .shard_bytes = 20'000});
  export_model(saved.folder, saved.path("out"), {.dtype = DType::kBf16});
  CHECK(ModelFolder(saved.path("out")).tensor("lm_head.weight").dtype == "BF16");
  CHECK_FALSE(fs::exists(saved.path("out/model.safetensors.index.json")));
}

TEST_CASE("what is no export is not replaced") {
  const Saved saved(DType::kF32);
  const auto refuse = [&](const fs::path& target, const std::string& part) {
    check_error(ErrorKind::kConfig, {target.filename().string(), part},
                [&] { export_model(saved.folder, target, {}); });
  };
  refuse(saved.folder, "is the model itself");
  const Saved other(DType::kF32);
  refuse(other.folder, "is not empty and not an earlier export");
  CHECK(fs::exists(other.folder / "model.safetensors"));
  fs::create_directories(saved.path("notes"));
  write_file(saved.path("notes/a.txt"), "x");
  refuse(saved.path("notes"), "is not empty and not an earlier export");
  write_file(saved.path("notes/model.safetensors"), "damaged");
  refuse(saved.path("notes"), "is not empty and not an earlier export");
  refuse(saved.path("notes/a.txt"), "is a file");
  refuse("", "empty name");
}

TEST_CASE("an earlier export with a file of the user's is not replaced") {
  const Saved saved(DType::kF32);
  export_model(saved.folder, saved.path("out"), {});
  write_file(saved.path("out/README.md"), "mine");
  check_error(ErrorKind::kConfig, {"holds 'README.md'"}, [&] { export_model(saved.folder, saved.path("out"), {}); });
  CHECK(read_file(saved.path("out/README.md")) == "mine");
}

TEST_CASE("a damaged source leaves no target") {
  const Saved saved(DType::kF32);
  fs::resize_file(saved.folder / "model.safetensors", 1000);
  check_error(ErrorKind::kIo, {"model.safetensors"}, [&] { export_model(saved.folder, saved.path("out"), {}); });
  CHECK_FALSE(fs::exists(saved.path("out")));
}
