// SPDX-License-Identifier: Apache-2.0
// What a checkpoint holds, and that no damage of it goes unnoticed.
#include "train/checkpoint.h"

#include <cmath>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "catch.h"
#include "io/model_folder.h"
#include "io/safetensors.h"
#include "thrown.h"
#include "train/checkpoint_store.h"
#include "train/export_model.h"
#include "train/resumable_run.h"
#include "train/weights_io.h"

using namespace ferry;
using namespace ferry::test;

namespace fs = std::filesystem;

namespace {

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write(const fs::path& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

/// A run of bf16 weights with exact masters that has saved steps 3 and 5.
struct Saved {
  TempFolder place;
  RunSpec spec = frozen_spec();
  ResumableRun run{place.path(), spec};

  Saved() { run.train(5); }

  static RunSpec frozen_spec() {
    RunSpec result = run_spec("saved", DType::kBf16);
    result.engine.freeze = {"model.layers.1.*"};
    result.save_every = 3;
    return result;
  }
  fs::path folder(std::int64_t step = 5) const {
    return ResumableRun::checkpoints(place.path()) / checkpoint_name(step);
  }
  std::string error() const {
    return thrown([&] { Checkpoint checkpoint(folder()); });
  }

  /// Writes a file anew, with its checksum: damage that only a reader of its contents finds.
  void forge(const std::string& name, const std::string& text) const {
    const std::string before = digest_of(folder() / name).checksum;
    write(folder() / name, text);
    std::string checksums = read(folder() / kCheckpointChecksums);
    checksums.replace(checksums.find(before), before.size(), digest_of(folder() / name).checksum);
    write(folder() / kCheckpointChecksums, checksums);
  }
  /// What a changed state.json is refused with.
  std::string forged(const std::function<void(nlohmann::ordered_json&)>& change) const {
    const std::string before = read(folder() / kCheckpointStateFile);
    auto json = nlohmann::ordered_json::parse(before);
    change(json);
    forge(kCheckpointStateFile, json.dump());
    const std::string message = error();
    forge(kCheckpointStateFile, before);
    CHECK(error().empty());
    CHECK((message.empty() || contains(message, "step-00000005/state.json")));
    return message;
  }
};

}  // namespace

TEST_CASE("a checkpoint is a model folder with optimizer state under the names of the parameters") {
  Saved saved;
  const ModelFolder model(saved.folder());
  for (const ParameterInfo& info : saved.run.engine().parameters().parameters()) CHECK(model.contains(info.name));
  CHECK(load_model_config(saved.folder()).vocab_size == 256);
  const SafetensorsFile state(saved.folder() / "optimizer.safetensors");
  const std::string name = "model.layers.0.mlp.up_proj.weight";
  REQUIRE(state.find(name + ".first_moment") != nullptr);
  CHECK(state.find(name + ".first_moment")->dtype == "F32");
  CHECK(state.find(name + ".second_moment")->shape == std::vector<std::int64_t>{32, 16});
  CHECK(state.find(name + ".weight_low")->dtype == "I16");
  CHECK(state.find("model.layers.1.mlp.up_proj.weight.first_moment") == nullptr);  // frozen
}

TEST_CASE("weights of a checkpoint load as those of any model folder") {
  Saved saved;
  ResumableRun other(saved.place.path() / "other", saved.spec);
  load_weights(saved.folder(), other.model(), other.engine());
  CHECK(array_bytes(other.engine(), ParameterArray::kWeight) ==
        array_bytes(saved.run.engine(), ParameterArray::kWeight));
}

TEST_CASE("a flipped bit of a file that is read for its weights is named, by whoever reads it") {
  Saved saved;
  ResumableRun other(saved.place.path() / "other", saved.spec);
  const fs::path target = saved.place.path() / "target";
  const auto loaded = [&] { return thrown([&] { load_weights(saved.folder(), other.model(), other.engine()); }); };
  const auto exported = [&](DType dtype) {
    const std::string message = thrown([&] { export_model(saved.folder(), target, {.dtype = dtype}); });
    CHECK(fs::exists(target) == message.empty());
    fs::remove_all(target);
    return message;
  };
  for (const std::string name : {"config.json", kCheckpointModel, kCheckpointOptimizer}) {
    INFO(name);
    const fs::path file = saved.folder() / name;
    const std::string whole = read(file);
    const bool is_optimizer = name == kCheckpointOptimizer;
    for (const std::size_t at : {whole.size() / 5, whole.size() / 2, whole.size() - 1}) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ 1);
      write(file, damaged);
      const auto is_refused = [&](const std::string& message) {
        return message.starts_with("io: ") && contains(message, "step-00000005/" + name + " is damaged: its checksum");
      };
      INFO(at);
      CHECK(is_refused(exported(DType::kF32)));
      CHECK(is_refused(exported(DType::kBf16)) == !is_optimizer);  // what is not read is not compared
      CHECK(is_refused(loaded()) == !is_optimizer);
    }
    write(file, whole);
    CHECK(exported(DType::kF32).empty());
    CHECK(exported(DType::kBf16).empty());
    CHECK(loaded().empty());
  }
}

TEST_CASE("weights are compared in whichever order they are read, and without the other files of their checkpoint") {
  Saved saved;
  fs::remove(saved.folder() / kCheckpointOptimizer);
  fs::remove(saved.folder() / kCheckpointStateFile);
  const auto read_backwards = [&] {
    StoredWeights weights(saved.folder());
    const std::vector<ParameterInfo>& parameters = weights.table().parameters();
    for (auto it = parameters.rbegin(); it != parameters.rend(); ++it) weights.read(*it, [](auto, auto) {});
    weights.check_bytes();
  };
  CHECK(thrown(read_backwards).empty());
  std::string weights = read(saved.folder() / kCheckpointModel);
  weights[weights.size() / 2] ^= 1;
  write(saved.folder() / kCheckpointModel, weights);
  CHECK(contains(thrown(read_backwards), "model.safetensors is damaged: its checksum is "));
  fs::remove(saved.folder() / kCheckpointChecksums);  // as a folder from Hugging Face
  CHECK(thrown(read_backwards).empty());
}

TEST_CASE("weights in other files than a checkpoint's are not taken for those of its checksums") {
  Saved saved;
  const std::string shard = "model-00001-of-00001.safetensors";
  nlohmann::json index;
  for (const std::string& name : ModelFolder(saved.folder()).names()) index["weight_map"][name] = shard;
  write(saved.folder() / "model.safetensors.index.json", index.dump());
  fs::rename(saved.folder() / kCheckpointModel, saved.folder() / shard);
  CHECK(contains(thrown([&] { StoredWeights weights(saved.folder()); }),
                 "holds checksums.xxh128, but no model.safetensors"));
}

TEST_CASE("the state of a checkpoint reads back equal") {
  Saved saved;
  const CheckpointState state = Checkpoint(saved.folder()).state();
  CHECK(state.trainer.step == 5);
  CHECK(state.applied_steps == 5);
  CHECK(state.trainer.cursor.position == 20);
  CHECK(state.trainer.losses.points.size() == 5);
  REQUIRE(state.run.data_files.size() == 2);
  CHECK(parse_checkpoint_state(to_json(state), "state") == state);
  CheckpointState masked = state;
  masked.run.data_files[1].mask = "some checksum";
  CHECK(parse_checkpoint_state(to_json(masked), "state") == masked);
}

TEST_CASE("a state without fingerprints of the data is one that was written before there were any") {
  Saved saved;
  CheckpointState state = Checkpoint(saved.folder()).state();
  auto json = nlohmann::ordered_json::parse(to_json(state));
  CHECK(json["data"].erase("files") == 1);
  state.run.data_files.clear();
  CHECK(parse_checkpoint_state(json.dump(), "state") == state);
}

TEST_CASE("a flipped bit, a cut and a missing file are named, whichever file it is") {
  Saved saved;
  CHECK(saved.error().empty());
  for (const auto& entry : fs::directory_iterator(saved.folder())) {
    const fs::path& file = entry.path();
    const std::string name = file.filename().string();
    const std::string whole = read(file);
    INFO(name);
    const std::string wanted = "step-00000005/" + (name == kCheckpointChecksums ? "" : name);
    for (const std::size_t at : {std::size_t{0}, whole.size() / 3, whole.size() / 2, whole.size() - 1}) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ 4);
      write(file, damaged);
      INFO(saved.error());
      CHECK(saved.error().starts_with("io: "));
      CHECK(contains(saved.error(), wanted));
    }
    for (const std::size_t size : {std::size_t{0}, std::size_t{1}, whole.size() / 2, whole.size() - 1}) {
      write(file, whole.substr(0, size));
      CHECK(saved.error().starts_with("io: "));
      CHECK(contains(saved.error(), wanted));
    }
    write(file, whole + "x");
    CHECK(contains(saved.error(), wanted));
    fs::remove(file);
    CHECK(contains(saved.error(), wanted));
    write(file, whole);
    CHECK(saved.error().empty());
  }
}

TEST_CASE("a state of another version, of wrong types or out of range is refused by its key") {
  Saved saved;
  using Json = nlohmann::ordered_json;
  CHECK(contains(saved.forged([](Json& s) { s["version"] = 2; }), "format version 2; this ferry reads version 1"));
  CHECK(contains(saved.forged([](Json& s) { s["format"] = "other"; }), "its format is 'other'"));
  CHECK(contains(saved.forged([](Json& s) { s = Json::array(); }), "expected an object, got []"));
  for (const char* key : {"step", "applied_steps", "skipped_steps", "tokens"}) {
    INFO(key);
    CHECK(contains(saved.forged([&](Json& s) { s.erase(key); }), std::string("no key '") + key));
    for (const Json& value : {Json(-1), Json(1.5), Json("3"), Json(nullptr), Json(UINT64_MAX), Json::array({1})}) {
      CHECK(contains(saved.forged([&](Json& s) { s[key] = value; }), std::string(key) + " is " + value.dump()));
    }
  }
  CHECK(contains(saved.forged([](Json& s) { s["step"] = 0; }), "step is 0, expected an integer from 1"));
  CHECK(contains(saved.forged([](Json& s) { s["applied_steps"] = 6; }), "applied_steps is 6"));
  CHECK(contains(saved.forged([](Json& s) { s["config"] = 3; }), "config is 3, expected a text"));
  CHECK(contains(saved.forged([](Json& s) { s["elapsed_s"] = "long"; }), "elapsed_s is \"long\""));
  CHECK(contains(saved.forged([](Json& s) { s["data"]["position"] = 149; }), "data: position is 149"));
  CHECK(contains(saved.forged([](Json& s) { s["data"] = 1; }), "data: expected an object, got 1"));
  CHECK(contains(saved.forged([](Json& s) { s["files"]["model.safetensors"] = -4; }), "model.safetensors is -4"));
  CHECK(contains(saved.forged([](Json& s) { s["files"].erase("model.safetensors"); }), "does not list model.saf"));
  CHECK(contains(saved.forged([](Json& s) { s["data"]["files"] = 1; }), "data: files is not a list"));
  CHECK(contains(saved.forged([](Json& s) { s["data"]["files"][1] = 1; }), "files: expected an object, got 1"));
  CHECK(contains(saved.forged([](Json& s) { s["data"]["files"][1]["bytes"] = 0; }), "files: bytes is 0"));
  CHECK(contains(saved.forged([](Json& s) { s["data"]["files"][0].erase("sample_xxh128"); }), "no key 'sample_xxh"));
  CHECK(contains(saved.forged([](Json& s) { s["data"]["files"][0]["mask_sample_xxh128"] = 1; }), "expected a text"));
  CHECK(contains(saved.forged([](Json& s) { s["losses"]["group"] = 0; }), "losses: group is 0"));
  CHECK(contains(saved.forged([](Json& s) { s["losses"]["in_group"] = 9; }), "losses: in_group is 9"));
  CHECK(contains(saved.forged([](Json& s) { s["losses"]["tail"] = std::vector<int>(51); }), "list of at most 50"));
  CHECK(contains(saved.forged([](Json& s) { s["losses"]["steps"].push_back(7); }), "6 steps and 5 values"));
  CHECK(contains(saved.forged([](Json& s) { s["losses"]["steps"][1] = 1; }), "steps is 1, expected an integer from 2"));
  CHECK(contains(saved.forged([](Json& s) { s["validation"]["last"] = true; }), "last: expected an object"));
}

TEST_CASE("a state that is nested, repeats a key or is no JSON is refused") {
  Saved saved;
  const auto error_of = [&](const std::string& text) {
    saved.forge(kCheckpointStateFile, text);
    return saved.error();
  };
  CHECK(contains(error_of(std::string(100000, '[')), "state.json"));
  CHECK(contains(error_of(R"({"step": 1, "step": 2})"), "the key 'step' occurs twice"));
  CHECK(contains(error_of("{"), "malformed JSON"));
  CHECK(contains(error_of(""), "state.json"));
}

TEST_CASE("checksums that are no list of files are refused") {
  Saved saved;
  const fs::path file = saved.folder() / kCheckpointChecksums;
  const std::string whole = read(file);
  const std::string digits(32, 'a');
  for (const std::string& bad : {digits + "  ../state.json\n", digits + " x\n", std::string("\n"), digits + "  a"}) {
    write(file, whole + bad);
    CHECK(contains(saved.error(), "checksums.xxh128 is damaged: its line"));
  }
  write(file, whole + whole);
  CHECK(contains(saved.error(), "is no checksum and name"));
  write(file, whole + digits + "  extra.bin\n");
  CHECK(contains(saved.error(), "state.json does not list extra.bin"));
  write(file, std::string(1 << 17, 'a'));
  CHECK(contains(saved.error(), "checksums.xxh128 has 131072 bytes, at most 65536"));
}

TEST_CASE("tensors that this run does not keep leave the engine as it was") {
  Saved saved;
  RunSpec other = saved.spec;
  SECTION("another optimizer state") { other.engine.optimizer_state = OptimizerState::kBf16; }
  SECTION("another element type") { other.engine.dtype = DType::kF32; }
  SECTION("other frozen parameters") { other.engine.freeze = {}; }
  SECTION("fewer parameters with state") { other.engine.freeze = {"model.layers.*"}; }
  SECTION("another model") { other.tied = false; }
  ResumableRun run(saved.place.path() / "other", other);
  const RunTrace before = run.trace();
  const Checkpoint checkpoint(saved.folder());
  const std::string message = thrown([&] { checkpoint.restore(run.engine()); });
  CHECK(message.starts_with("io: "));
  CHECK((contains(message, "this run keeps") || contains(message, "lacks the tensor")));
  CHECK(run.trace() == before);
}

TEST_CASE("the newest whole checkpoint is taken, damaged ones are passed over") {
  Saved saved;
  const fs::path folder = ResumableRun::checkpoints(saved.place.path());
  CHECK(newest_whole_checkpoint(folder)->state().trainer.step == 5);
  write(saved.folder(5) / "model.safetensors", "");
  CHECK(newest_whole_checkpoint(folder)->state().trainer.step == 3);
  fs::remove(saved.folder(3) / kCheckpointChecksums);
  CHECK(contains(thrown([&] { newest_whole_checkpoint(folder); }), "none of the 2 checkpoints in "));
  CHECK_FALSE(newest_whole_checkpoint(saved.place.path() / "absent"));
}

TEST_CASE("weights that are not finite are not saved, the checkpoint before stays") {
  Saved saved;
  saved.run.engine().set_parameter(0, 0, std::vector<float>(1, NAN));
  const RunIdentity run;
  TrainerState state;
  state.step = 6;
  const auto save = [&] {
    const CheckpointParts parts{.engine = saved.run.engine(),
                                .model = saved.run.model(),
                                .dtype = DType::kBf16,
                                .run = run,
                                .trainer = state,
                                .metrics = {}};
    save_checkpoint(saved.folder(6), parts);
  };
  CHECK(contains(thrown(save), "device: element 0 of model.embed_tokens.weight is nan"));
  CHECK(list_checkpoints(ResumableRun::checkpoints(saved.place.path())).back().step == 5);
}
