// SPDX-License-Identifier: Apache-2.0
// Nothing of a state.json is believed: each key has a type and a range.
#include "train/checkpoint_state.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "io/json_events.h"
#include "io/printable.h"

namespace ferry {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "ferry checkpoint";
constexpr std::int64_t kVersion = 1;
constexpr int kMaxDepth = 4;
constexpr std::int64_t kMaxSteps = 1'000'000'000'000;

/// An object of the file, and its place for messages.
class Reader {
 public:
  Reader(const Json& object, std::string place) : object_(object), place_(std::move(place)) {
    FERRY_CHECK(object.is_object(), kIo, "{}: expected an object, got {}", place_, shown(object));
  }

  const Json& at(const char* key) const {
    const auto found = object_.find(key);
    FERRY_CHECK(found != object_.end(), kIo, "{}: no key '{}'", place_, key);
    return *found;
  }
  bool is_null(const char* key) const { return at(key).is_null(); }
  Reader object(const char* key) const { return {at(key), fmt::format("{}: {}", place_, key)}; }
  const Json& json() const { return object_; }

  std::int64_t integer(const char* key, std::int64_t low, std::int64_t high = INT64_MAX) const {
    return integer(at(key), key, low, high);
  }
  std::int64_t integer(const Json& value, const std::string& key, std::int64_t low, std::int64_t high) const {
    const bool fits =
        value.is_number_unsigned() ? value.get<std::uint64_t>() <= std::uint64_t{INT64_MAX} : value.is_number_integer();
    const std::int64_t number = fits ? value.get<std::int64_t>() : 0;
    FERRY_CHECK(fits && number >= low && number <= high, kIo, "{}: {} is {}, expected an integer from {} to {}", place_,
                printable_name(key), shown(value), low, high);
    return number;
  }
  double number(const char* key) const { return number(at(key), key); }
  std::string text(const char* key) const {
    FERRY_CHECK(at(key).is_string(), kIo, "{}: {} is {}, expected a text", place_, key, shown(at(key)));
    return at(key).get<std::string>();
  }
  bool has(const char* key) const { return object_.contains(key); }
  std::vector<Reader> objects(const char* key) const {
    std::vector<Reader> objects;
    for (const Json& value : list(key, SIZE_MAX)) objects.emplace_back(value, fmt::format("{}: {}", place_, key));
    return objects;
  }
  std::vector<double> numbers(const char* key, std::size_t most) const {
    std::vector<double> values;
    for (const Json& value : list(key, most)) values.push_back(number(value, key));
    return values;
  }
  /// Ascending steps with a loss each.
  std::vector<LossPoint> points(std::size_t most, std::int64_t last_step) const {
    const Json& steps = list("steps", most);
    const std::vector<double> values = numbers("values", most);
    FERRY_CHECK(steps.size() == values.size(), kIo, "{}: {} steps and {} values", place_, steps.size(), values.size());
    std::vector<LossPoint> points;
    std::int64_t least = 1;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      points.push_back({integer(steps[i], "steps", least, last_step), values[i]});
      least = points.back().step + 1;
    }
    return points;
  }

 private:
  static std::string shown(const Json& value) {
    return printable_name(value.dump(-1, ' ', false, Json::error_handler_t::replace));
  }
  double number(const Json& value, const char* key) const {
    const bool fits = value.is_number() && std::isfinite(value.get<double>());
    FERRY_CHECK(fits, kIo, "{}: {} is {}, expected a finite number", place_, key, shown(value));
    return value.get<double>();
  }
  const Json& list(const char* key, std::size_t most) const {
    const Json& value = at(key);
    FERRY_CHECK(value.is_array() && value.size() <= most, kIo, "{}: {} is not a list of at most {} values", place_, key,
                most);
    return value;
  }

  const Json& object_;
  std::string place_;
};

Json points_json(const std::vector<LossPoint>& points) {
  Json steps = Json::array();
  Json values = Json::array();
  for (const LossPoint& point : points) {
    steps.push_back(point.step);
    values.push_back(point.loss);
  }
  return {{"steps", std::move(steps)}, {"values", std::move(values)}};
}

Json validation_json(const TrainerState& state) {
  Json json = points_json(state.val_curve);
  json["last"] = nullptr;
  if (state.last_eval) {
    json["last"] = {{"step", state.last_eval->step},
                    {"val_loss", state.last_eval->val_loss},
                    {"val_tokens", state.last_eval->val_tokens},
                    {"elapsed_s", state.last_eval->elapsed_s}};
  }
  return json;
}

Json data_files_json(const std::vector<DataFingerprint>& files) {
  Json json = Json::array();
  for (const DataFingerprint& file : files) {
    json.push_back({{"bytes", file.tokens.size_bytes}, {"sample_xxh128", file.tokens.checksum}});
    if (!file.mask.empty()) json.back()["mask_sample_xxh128"] = file.mask;
  }
  return json;
}

std::vector<DataFingerprint> read_data_files(const Reader& data) {
  std::vector<DataFingerprint> files;
  if (!data.has("files")) return files;
  for (const Reader& file : data.objects("files")) {
    files.push_back({{file.integer("bytes", 1), file.text("sample_xxh128")},
                     file.has("mask_sample_xxh128") ? file.text("mask_sample_xxh128") : ""});
  }
  return files;
}

Json losses_json(const LossHistory::State& losses) {
  Json json = points_json(losses.points);
  json["group"] = losses.group;
  json["in_group"] = losses.in_group;
  json["tail"] = losses.tail;
  return json;
}

LossHistory::State read_losses(const Reader& reader, std::int64_t last_step) {
  LossHistory::State losses;
  losses.points = reader.points(LossHistory::kMaxKept, last_step);
  losses.group = static_cast<std::size_t>(reader.integer("group", 1, kMaxSteps));
  losses.in_group = static_cast<std::size_t>(reader.integer("in_group", 0, static_cast<std::int64_t>(losses.group)));
  const std::vector<double> tail = reader.numbers("tail", LossHistory::kTail);
  losses.tail = {tail.begin(), tail.end()};
  return losses;
}

void read_validation(const Reader& reader, TrainerState& state) {
  state.val_curve = reader.points(SIZE_MAX, state.step);
  if (reader.is_null("last")) return;
  const Reader last = reader.object("last");
  state.last_eval = {.step = last.integer("step", 0, state.step),
                     .val_loss = last.number("val_loss"),
                     .val_tokens = last.integer("val_tokens", 1),
                     .elapsed_s = last.number("elapsed_s")};
}

void check_format(const Reader& reader, const std::string& origin) {
  const std::string format = reader.text("format");
  FERRY_CHECK(format == kFormat, kIo, "{}: its format is '{}', expected '{}'", origin, printable_name(format), kFormat);
  const std::int64_t version = reader.integer("version", 1);
  FERRY_CHECK(version == kVersion, kIo,
              "{}: format version {}; this ferry reads version {}: use the ferry that wrote it", origin, version,
              kVersion);
}

}  // namespace

std::string to_json(const CheckpointState& state) {
  const TrainerState& trainer = state.trainer;
  Json json{{"format", kFormat},
            {"version", kVersion},
            {"ferry_version", state.run.ferry_version},
            {"backend", state.run.backend},
            {"step", trainer.step},
            {"applied_steps", state.applied_steps},
            {"skipped_steps", trainer.skipped_steps},
            {"tokens", trainer.tokens},
            {"elapsed_s", trainer.elapsed_s},
            {"data",
             {{"epoch", trainer.cursor.epoch},
              {"position", trainer.cursor.position},
              {"sequences", state.run.n_sequences},
              {"tokens", state.run.n_data_tokens},
              {"files", data_files_json(state.run.data_files)}}},
            {"config", state.run.config_toml},
            {"files", state.file_bytes},
            {"losses", losses_json(trainer.losses)},
            {"validation", validation_json(trainer)}};
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

CheckpointState parse_checkpoint_state(const std::string& text, const std::string& origin) {
  read_json(text, origin, kMaxDepth, [](const JsonEvent&) {});  // depth and duplicate keys
  const Json json = Json::parse(text);
  const Reader reader(json, origin);
  check_format(reader, origin);
  CheckpointState state;
  state.run.ferry_version = reader.text("ferry_version");
  state.run.backend = reader.text("backend");
  state.run.config_toml = reader.text("config");
  TrainerState& trainer = state.trainer;
  trainer.step = reader.integer("step", 1, kMaxSteps);
  state.applied_steps = reader.integer("applied_steps", 0, trainer.step);
  trainer.skipped_steps = reader.integer("skipped_steps", 0, trainer.step);
  trainer.tokens = reader.integer("tokens", 0);
  trainer.elapsed_s = reader.number("elapsed_s");
  const Reader data = reader.object("data");
  state.run.n_sequences = data.integer("sequences", 1);
  state.run.n_data_tokens = data.integer("tokens", 1);
  state.run.data_files = read_data_files(data);
  trainer.cursor.epoch = data.integer("epoch", 0, kMaxSteps);
  trainer.cursor.position = data.integer("position", 0, state.run.n_sequences - 1);
  const Reader files = reader.object("files");
  for (const auto& [name, bytes] : files.json().items()) {
    state.file_bytes[name] = files.integer(bytes, name, 0, INT64_MAX);
  }
  trainer.losses = read_losses(reader.object("losses"), trainer.step);
  read_validation(reader.object("validation"), trainer);
  return state;
}

}  // namespace ferry
