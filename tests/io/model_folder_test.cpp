// SPDX-License-Identifier: Apache-2.0
#include "io/model_folder.h"

#include "io/file_test_helpers.h"

namespace ferry {
namespace {

using namespace test;

// A file of f32 tensors of two elements: value, value + 0.5.
void write_weights(const std::filesystem::path& path, const std::vector<std::pair<std::string, float>>& tensors) {
  std::vector<SafetensorsSpec> specs;
  for (const auto& [name, value] : tensors) specs.push_back({name, "F32", {2}});
  SafetensorsWriter writer(path, specs);
  for (const auto& [name, value] : tensors) {
    const std::vector<float> values{value, value + 0.5F};
    writer.append(name, std::as_bytes(std::span(values)));
  }
  writer.finish();
}

void write_index(const TemporaryFolder& folder, const std::string& text) {
  write_file(folder / "model.safetensors.index.json", text);
}

constexpr const char* kTwoShards =
    R"({"metadata":{"total_size":16},"weight_map":{"a":"1.safetensors","b":"2.safetensors"}})";

float first_value(const ModelFolder& model, std::string_view name) {
  const std::vector<std::int64_t> shape{2};
  float value = 0;
  model.read_into(name, {shape, DType::kF32, &value, 0, 1});
  return value;
}

void check_index_refused(const std::string& index, const std::vector<std::string>& parts) {
  const TemporaryFolder folder;
  write_index(folder, index);
  write_weights(folder / "1.safetensors", {{"a", 1}});
  check_error(ErrorKind::kIo, parts, [&] { ModelFolder{folder.path()}; });
}

TEST_CASE("a single file's tensors are found") {
  const TemporaryFolder folder;
  write_weights(folder / "model.safetensors", {{"b", 2}, {"a", 1}});
  const ModelFolder model(folder.path());
  CHECK(model.names() == std::vector<std::string>{"a", "b"});
  CHECK(model.contains("a"));
  CHECK_FALSE(model.contains("c"));
  CHECK(model.tensor("b").dtype == "F32");
  CHECK(first_value(model, "b") == 2);
}

TEST_CASE("tensors are found over shards") {
  const TemporaryFolder folder;
  write_index(folder, kTwoShards);
  write_weights(folder / "1.safetensors", {{"a", 1}});
  write_weights(folder / "2.safetensors", {{"b", 2}});
  ModelFolder opened(folder.path());
  const ModelFolder model = std::move(opened);
  CHECK(model.names() == std::vector<std::string>{"a", "b"});
  CHECK(first_value(model, "a") == 1);
  CHECK(first_value(model, "b") == 2);
}

TEST_CASE("a missing tensor is an error with its name") {
  const TemporaryFolder folder;
  write_weights(folder / "model.safetensors", {{"a", 1}});
  const ModelFolder model(folder.path());
  check_error(ErrorKind::kIo, {folder.path().string(), "no tensor 'lm_head.weight' among its 1"},
              [&] { (void)model.tensor("lm_head.weight"); });
}

TEST_CASE("read errors name the file") {
  const TemporaryFolder folder;
  write_weights(folder / "model.safetensors", {{"a", 1}});
  const ModelFolder model(folder.path());
  const std::vector<std::int64_t> shape{3};
  float value = 0;
  check_error(ErrorKind::kShape, {"model.safetensors: tensor 'a' has shape (2), expected (3)"}, [&] {
    model.read_into("a", {shape, DType::kF32, &value, 0, 1});
  });
}

TEST_CASE("a path that is no folder is an error") {
  check_error(ErrorKind::kIo, {"/absent is no folder"}, [] { ModelFolder{"/absent"}; });
}

TEST_CASE("a folder without weights is an error that says what is looked for") {
  const TemporaryFolder folder;
  check_error(ErrorKind::kIo, {"has neither model.safetensors nor model.safetensors.index.json"},
              [&] { ModelFolder{folder.path()}; });
}

TEST_CASE("a folder with pickled weights says that they are not read") {
  const TemporaryFolder folder;
  write_file(folder / "pytorch_model.bin", "");
  check_error(ErrorKind::kIo, {"pytorch_model.bin is not read"}, [&] { ModelFolder{folder.path()}; });
}

TEST_CASE("a missing shard is an error with its name") {
  check_index_refused(kTwoShards, {"index.json: 2.safetensors is missing; it holds tensor 'b'"});
}

TEST_CASE("a tensor that its shard lacks is an error") {
  check_index_refused(R"({"weight_map":{"a":"1.safetensors","c":"1.safetensors"}})",
                      {"tensor 'c' is not in 1.safetensors"});
}

TEST_CASE("a tensor in another shard than the index says is an error") {
  const TemporaryFolder folder;
  write_index(folder, R"({"weight_map":{"a":"2.safetensors","b":"1.safetensors"}})");
  write_weights(folder / "1.safetensors", {{"a", 1}});
  write_weights(folder / "2.safetensors", {{"b", 1}});
  check_error(ErrorKind::kIo, {"tensor 'a' is not in 2.safetensors"}, [&] { ModelFolder{folder.path()}; });
}

TEST_CASE("a tensor in two shards is an error with both") {
  const TemporaryFolder folder;
  write_index(folder, kTwoShards);
  write_weights(folder / "1.safetensors", {{"a", 1}});
  write_weights(folder / "2.safetensors", {{"a", 1}, {"b", 2}});
  check_error(ErrorKind::kIo, {"2.safetensors: tensor 'a' is in 1.safetensors too"},
              [&] { ModelFolder{folder.path()}; });
}

TEST_CASE("a tensor that the index does not list is an error") {
  const TemporaryFolder folder;
  write_index(folder, R"({"weight_map":{"a":"1.safetensors"}})");
  write_weights(folder / "1.safetensors", {{"a", 1}, {"extra", 2}});
  check_error(ErrorKind::kIo, {"tensor 'extra' of 1.safetensors is not listed"}, [&] { ModelFolder{folder.path()}; });
}

TEST_CASE("an index cannot point out of its folder") {
  for (const char* shard : {"../1.safetensors", "/etc/1.safetensors", "sub/1.safetensors", "..\\\\1.safetensors", "..",
                            "", "1.bin", "1\\u0000.safetensors"}) {
    check_index_refused(R"({"weight_map":{"a":")" + std::string(shard) + "\"}}",
                        {"tensor 'a' is mapped to", "of the same folder"});
  }
}

TEST_CASE("an index without a weight map is an error") {
  check_index_refused(R"({"metadata":{}})", {"index.json: no weight_map"});
}

TEST_CASE("an index with values of the wrong type is an error") {
  check_index_refused(R"({"weight_map":[]})", {"weight_map is an array, expected an object"});
  check_index_refused(R"({"weight_map":{"a":1}})", {"weight_map of 'a' is 1, expected a file name"});
}

TEST_CASE("an index that lists a tensor twice is an error") {
  check_index_refused(R"({"weight_map":{"a":"1.safetensors","a":"1.safetensors"}})", {"the key 'a' occurs twice"});
}

TEST_CASE("an index of absurd size is refused unread") {
  const TemporaryFolder folder;
  write_index(folder, "{}");
  std::filesystem::resize_file(folder / "model.safetensors.index.json", 1ULL << 32);  // sparse
  check_error(ErrorKind::kIo, {"4294967296 bytes, the limit is 67108864"}, [&] { ModelFolder{folder.path()}; });
}

}  // namespace
}  // namespace ferry
