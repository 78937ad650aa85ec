// SPDX-License-Identifier: Apache-2.0
// Loading fixtures into engines and reading them back.
#include "offload/tiny_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "core/rng.h"
#include "io/safetensors.h"

namespace ferry::test {
namespace {

template <class T>
std::vector<T> copy_of(const SafetensorsEntry& entry) {
  std::vector<T> result(entry.bytes.size() / sizeof(T));
  std::memcpy(result.data(), entry.bytes.data(), entry.bytes.size());
  return result;
}

std::vector<float> as_floats(const SafetensorsEntry& entry) {
  if (entry.dtype == "F32") return copy_of<float>(entry);
  std::vector<float> result;
  for (const Bf16 value : copy_of<Bf16>(entry)) result.push_back(to_f32(value));
  return result;
}

std::vector<float> as_floats(const TensorView& view) {
  const auto* first = static_cast<const std::byte*>(view.data);
  std::vector<float> result(static_cast<std::size_t>(view.elems()));
  for (std::size_t i = 0; i < result.size(); ++i) {
    if (view.dtype == DType::kF32) {
      std::memcpy(&result[i], first + i * sizeof(float), sizeof(float));
    } else {
      Bf16 value;
      std::memcpy(&value, first + i * sizeof(Bf16), sizeof(Bf16));
      result[i] = to_f32(value);
    }
  }
  return result;
}

}  // namespace

ModelFixture::ModelFixture(const std::string& name) {
  const std::string stem = std::string(FERRY_FIXTURES) + "/model/" + name;
  config = load_model_config(stem + ".config.json");
  const SafetensorsFile file(stem + ".safetensors");
  for (const SafetensorsEntry& entry : file.entries()) {
    if (entry.dtype != "I32") tensors[entry.name] = as_floats(entry);
  }
  const SafetensorsEntry& ids = *file.find("input_ids");
  batch.batch_size = ids.shape[0];
  batch.seq_len = ids.shape[1];
  batch.inputs = copy_of<std::int32_t>(ids);
  batch.targets = copy_of<std::int32_t>(*file.find("labels"));
  batch.n_valid_targets =
      static_cast<std::int64_t>(batch.targets.size()) - std::ranges::count(batch.targets, kIgnoreIndex);
}

std::vector<std::string> model_fixtures() {
  std::vector<std::string> names;
  for (const auto& file : std::filesystem::directory_iterator(std::string(FERRY_FIXTURES) + "/model")) {
    if (file.path().extension() == ".safetensors") names.push_back(file.path().stem().string());
  }
  std::ranges::sort(names);
  return names;
}

void load_weights(Engine& engine, const ModelFixture& fixture) {
  const auto& infos = engine.parameters().parameters();
  for (std::size_t i = 0; i < infos.size(); ++i) engine.set_parameter(i, 0, fixture.tensor("weight." + infos[i].name));
}

ModelConfig small_config(bool tied) {
  ModelConfig config;
  config.vocab_size = 61;
  config.hidden_size = 24;
  config.intermediate_size = 38;
  config.n_layers = 3;
  config.n_heads = 4;
  config.n_kv_heads = 2;
  config.head_dim = 6;
  config.max_position_embeddings = 64;
  config.tie_word_embeddings = tied;
  config.initializer_range = 0.2;
  return config;
}

Batch random_batch(const ModelConfig& config, std::int64_t batch_size, std::int64_t seq_len, std::uint64_t step) {
  const CounterRng rng(step, "batch");
  Batch batch{.batch_size = batch_size, .seq_len = seq_len, .inputs = {}, .targets = {}, .n_valid_targets = 0};
  for (std::int64_t i = 0; i < batch_size * seq_len; ++i) {
    const auto draw = [&](std::uint64_t index) {
      return static_cast<std::int32_t>(rng.bits(index) % static_cast<std::uint32_t>(config.vocab_size));
    };
    const bool masked = i % 7 == 3;
    batch.inputs.push_back(draw(static_cast<std::uint64_t>(2 * i)));
    batch.targets.push_back(masked ? kIgnoreIndex : draw(static_cast<std::uint64_t>(2 * i + 1)));
    batch.n_valid_targets += masked ? 0 : 1;
  }
  return batch;
}

std::vector<std::byte> snapshot(Engine& engine, ParameterArray array) {
  std::vector<std::byte> bytes;
  engine.for_each_piece(array, [&](const ParameterInfo&, std::int64_t, TensorView piece) {
    if (!piece) return;
    const auto* first = static_cast<const std::byte*>(piece.data);
    bytes.insert(bytes.end(), first, first + piece.size_bytes());
  });
  return bytes;
}

std::map<std::string, std::vector<float>> values(Engine& engine, ParameterArray array) {
  std::map<std::string, std::vector<float>> result;
  engine.for_each_piece(array, [&](const ParameterInfo& info, std::int64_t, TensorView piece) {
    const std::vector<float> part = as_floats(piece);
    auto& all = result[info.name];
    all.insert(all.end(), part.begin(), part.end());
  });
  return result;
}

double relative_error(const std::vector<float>& got, const std::vector<float>& want) {
  if (got.size() != want.size()) return INFINITY;
  double error = 0;
  double norm = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    error += std::pow(static_cast<double>(got[i]) - static_cast<double>(want[i]), 2);
    norm += std::pow(static_cast<double>(want[i]), 2);
  }
  return std::sqrt(error / norm);
}

}  // namespace ferry::test
