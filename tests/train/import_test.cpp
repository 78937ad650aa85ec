// SPDX-License-Identifier: Apache-2.0
// Hugging Face folders as others write them: half precision, shards, a head beside tied embeddings.
#include <bit>
#include <cmath>
#include <set>

#include "catch.h"
#include "io/file_test_helpers.h"
#include "train/tiny_run.h"
#include "train/weights_io.h"

using namespace ferry;
using namespace ferry::test;

namespace {

/// Stored elements of 16 bits, all finite and different from those of other tensors, subnormals included.
std::vector<std::uint16_t> half_bits(std::size_t parameter, std::int64_t n_elems) {
  std::vector<std::uint16_t> bits;
  for (std::int64_t i = 0; i < n_elems; ++i) {
    const auto value = static_cast<std::uint16_t>(static_cast<std::size_t>(i) * 37 + parameter * 101);
    bits.push_back(static_cast<std::uint16_t>(value & 0xbfffU));  // below 2: no infinity, no NaN
  }
  return bits;
}

float f16_value(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const auto fraction = static_cast<float>(bits & 1023);
  const float size = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return bits >> 15 ? -size : size;
}

struct Shard {
  std::string name;
  std::vector<std::size_t> parameters;
};

/// `model` as `dtype` (F16 or BF16) over `shards`, with an index when there are several.
void write_halves(const std::filesystem::path& folder, const ModelConfig& model, const char* dtype,
                  const std::vector<Shard>& shards) {
  const ParameterTable table(model, model.vocab_size);
  std::string index;
  std::filesystem::create_directories(folder);
  write_file(folder / "config.json", to_hugging_face_json(model, "bfloat16"));
  for (const Shard& shard : shards) {
    std::vector<SafetensorsSpec> specs;
    for (const std::size_t i : shard.parameters) {
      specs.push_back({table.parameters()[i].name, dtype, table.parameters()[i].shape});
      index += (index.empty() ? "\"" : ",\"") + specs.back().name + "\":\"" + shard.name + "\"";
    }
    SafetensorsWriter writer(folder / shard.name, specs);
    for (const std::size_t i : shard.parameters) {
      const std::vector<std::uint16_t> bits = half_bits(i, table.parameters()[i].elems);
      writer.append(table.parameters()[i].name, std::as_bytes(std::span(bits)));
    }
    writer.finish();
  }
  if (shards.size() > 1) write_file(folder / "model.safetensors.index.json", R"({"weight_map":{)" + index + "}}");
}

/// All parameters in one file.
std::vector<Shard> one_file(const ModelConfig& model) {
  Shard all{"model.safetensors", {}};
  for (std::size_t i = 0; i < ParameterTable(model, model.vocab_size).parameters().size(); ++i) {
    all.parameters.push_back(i);
  }
  return {all};
}

/// Elements of the engine that differ from value_of(stored bits), and parameters that were looked at. With a f32 master
/// behind them bf16 weights are rounded to nearest, halves away from zero.
struct Comparison {
  std::int64_t n_wrong = 0;
  std::set<std::string> names;
};
template <class ValueOf>
Comparison compare(Engine& engine, const ValueOf& value_of) {
  Comparison result;
  std::size_t parameter = 0;
  engine.for_each_piece([&](const ParameterInfo& info, std::int64_t first, TensorView piece) {
    parameter += !result.names.empty() && first == 0 ? 1 : 0;
    result.names.insert(info.name);
    const std::vector<std::uint16_t> bits = half_bits(parameter, info.elems);
    for (std::int64_t i = 0; i < piece.elems(); ++i) {
      const auto wanted = std::bit_cast<std::uint32_t>(value_of(bits[static_cast<std::size_t>(first + i)]));
      const bool same = piece.dtype == DType::kF32 ? std::bit_cast<std::uint32_t>(piece.as<float>()[i]) == wanted
                                                   : piece.as<Bf16>()[i].bits == (wanted + 0x8000U) >> 16;
      result.n_wrong += same ? 0 : 1;
    }
  });
  return result;
}

}  // namespace

TEST_CASE("F16 weights, subnormals included, load exactly into f32 and rounded into bf16") {
  const DType dtype = GENERATE(DType::kF32, DType::kBf16);
  TinyRun run(dtype, false);
  write_halves(run.folder.path() / "f16", run.config, "F16", one_file(run.config));
  load_weights(run.folder.path() / "f16", run.config, *run.engine);
  const Comparison found = compare(*run.engine, f16_value);
  CHECK(found.n_wrong == 0);
  CHECK(found.names.size() == run.engine->parameters().parameters().size());
}

TEST_CASE("BF16 weights load exactly, from shards in any order") {
  TinyRun run(DType::kF32, true);
  const auto n_parameters = run.engine->parameters().parameters().size();
  std::vector<Shard> shards = {{"model-00001-of-00002.safetensors", {}}, {"model-00002-of-00002.safetensors", {}}};
  for (std::size_t i = n_parameters; i-- > 0;) shards[i % 2].parameters.push_back(i);
  write_halves(run.folder.path() / "bf16", run.config, "BF16", shards);
  load_weights(run.folder.path() / "bf16", run.config, *run.engine);
  const Comparison found = compare(*run.engine, [](std::uint16_t bits) { return to_f32(Bf16{bits}); });
  CHECK(found.n_wrong == 0);
  CHECK(found.names.size() == n_parameters);
}

TEST_CASE("an incomplete save in shards stops the import before a weight is set") {
  TinyRun run(DType::kF32, true);
  const auto before = fingerprint(*run.engine);
  const auto folder = run.folder.path() / "bf16";
  write_halves(folder, run.config, "BF16", {{"a.safetensors", {0, 1, 2, 3}}, {"b.safetensors", {4, 5}}});
  check_error(ErrorKind::kIo, {"lacks the tensor model.layers.0"},
              [&] { load_weights(folder, run.config, *run.engine); });
  CHECK(fingerprint(*run.engine) == before);
}
