// SPDX-License-Identifier: Apache-2.0
// The one source of this folder that sees nlohmann-json. Files are hostile: depth, size and duplicates are bounded
// here.
#include "config/model_config.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <vector>

#include "config/text_file.h"
#include "core/error.h"

namespace ferry {
namespace {

using Json = nlohmann::json;

constexpr int kMaxDepth = 32;  // printing JSON recurses

// Limits that no real model meets and under which byte counts stay far from int64's end.
constexpr std::int64_t kMaxVocab = std::int64_t{1} << 24;
constexpr std::int64_t kMaxWidth = std::int64_t{1} << 20;
constexpr std::int64_t kMaxFfn = std::int64_t{1} << 22;
constexpr std::int64_t kMaxLayers = 4096;
constexpr std::int64_t kMaxHeads = 65536;
constexpr std::int64_t kMaxHeadDim = 4096;
constexpr std::int64_t kMaxPositions = std::numeric_limits<std::int32_t>::max();

std::string text_of(const Json& value) { return shown(value.dump(-1, ' ', false, Json::error_handler_t::replace)); }

// Refuses depth and duplicate keys while the text is read, before a value of that depth exists.
class ParseGuard {
 public:
  bool operator()(int depth, Json::parse_event_t event, Json& parsed) {
    FERRY_CHECK(depth <= kMaxDepth, kConfig, "nested deeper than {} levels", kMaxDepth);
    if (event == Json::parse_event_t::object_start) keys_.emplace_back();
    if (event == Json::parse_event_t::object_end) keys_.pop_back();
    if (event == Json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      FERRY_CHECK(keys_.back().insert(key).second, kConfig, "{} is given twice", shown(key));
    }
    return true;
  }

 private:
  std::vector<std::set<std::string>> keys_;  // of the objects that are open
};

Json parse_object(const std::string& text) {
  Json json;
  try {
    json = Json::parse(text, ParseGuard());
  } catch (const Json::exception& error) {
    // "[json.exception.parse_error.101] parse error at line 1, ..." without the brackets
    const std::string_view what = error.what();
    const std::size_t end = what.find("] ");
    const std::string_view reason = end == std::string_view::npos ? what : what.substr(end + 2);
    detail::throw_error(ErrorKind::kIo, fmt::format("not JSON: {}", shown(reason)));
  }
  FERRY_CHECK(json.is_object(), kConfig, "{} is not a JSON object", text_of(json));
  return json;
}

// A field that is absent or null has no value.
const Json* find(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

std::optional<std::int64_t> get_int(const Json& object, const char* key) {
  const Json* value = find(object, key);
  if (value == nullptr) return std::nullopt;
  const bool fits = value->is_number_integer() &&
                    (!value->is_number_unsigned() ||
                     value->get<std::uint64_t>() <= std::uint64_t{std::numeric_limits<std::int64_t>::max()});
  FERRY_CHECK(fits, kConfig, "{} is {}, expected a 64-bit integer", key, text_of(*value));
  return value->get<std::int64_t>();
}

std::int64_t require_int(const Json& object, const char* key) {
  const std::optional<std::int64_t> value = get_int(object, key);
  FERRY_CHECK(value.has_value(), kConfig, "{} is missing", key);
  return *value;
}

std::optional<double> get_real(const Json& object, const char* key) {
  const Json* value = find(object, key);
  if (value == nullptr) return std::nullopt;
  FERRY_CHECK(value->is_number(), kConfig, "{} is {}, expected a number", key, text_of(*value));
  return value->get<double>();
}

double require_real(const Json& object, const char* key, const char* parent) {
  const std::optional<double> value = get_real(object, key);
  FERRY_CHECK(value.has_value(), kConfig, "{}.{} is missing", parent, key);
  return *value;
}

bool get_bool(const Json& object, const char* key) {
  const Json* value = find(object, key);
  if (value == nullptr) return false;
  FERRY_CHECK(value->is_boolean(), kConfig, "{} is {}, expected true or false", key, text_of(*value));
  return value->get<bool>();
}

std::optional<std::string> get_text(const Json& object, const char* key) {
  const Json* value = find(object, key);
  if (value == nullptr) return std::nullopt;
  FERRY_CHECK(value->is_string(), kConfig, "{} is {}, expected a string", key, text_of(*value));
  return value->get<std::string>();
}

void check_architecture(const Json& json) {
  const std::optional<std::string> type = get_text(json, "model_type");
  FERRY_CHECK(!type || *type == "llama", kConfig, "model_type is \"{}\": only \"llama\" is supported",
              shown(type.value_or("")));
  const Json* names = find(json, "architectures");
  const bool llama = names != nullptr && *names == Json::array({"LlamaForCausalLM"});
  FERRY_CHECK(names == nullptr || llama, kConfig, "architectures is {}: only [\"LlamaForCausalLM\"] is supported",
              text_of(*names));
  FERRY_CHECK(type || llama, kConfig, "neither model_type nor architectures is given: expected model_type = \"llama\"");
}

// Fields whose only supported value is the one that changes nothing.
void check_unsupported(const Json& json) {
  for (const char* key : {"attention_bias", "mlp_bias"}) {
    FERRY_CHECK(!get_bool(json, key), kConfig, "{} is true: biases are not supported", key);
  }
  const std::string activation = get_text(json, "hidden_act").value_or("silu");
  FERRY_CHECK(activation == "silu", kConfig, "hidden_act is \"{}\": only \"silu\" is supported", shown(activation));
  const double dropout = get_real(json, "attention_dropout").value_or(0);
  FERRY_CHECK(dropout == 0, kConfig, "attention_dropout is {}: dropout is not supported, set it to 0", dropout);
  const double rotary = get_real(json, "partial_rotary_factor").value_or(1);
  FERRY_CHECK(rotary == 1, kConfig, "partial_rotary_factor is {}: only whole heads are rotated (1)", rotary);
  FERRY_CHECK(find(json, "quantization_config") == nullptr, kConfig,
              "quantization_config is given: quantised models are not supported, export the weights as bf16 first");
  for (const char* key : {"torch_dtype", "dtype"}) get_text(json, key);
}

struct Rope {
  double theta;
  RopeScaling scaling;
  bool operator==(const Rope&) const = default;
};

// One rope_scaling or rope_parameters object; the latter holds rope_theta too.
Rope parse_rope(const Json& rope, const char* parent, double theta, std::int64_t max_positions) {
  FERRY_CHECK(rope.is_object(), kConfig, "{} is {}, expected an object or null", parent, text_of(rope));
  Rope result{get_real(rope, "rope_theta").value_or(theta), {}};
  RopeScaling& scaling = result.scaling;
  const double rotary = get_real(rope, "partial_rotary_factor").value_or(1);
  FERRY_CHECK(rotary == 1, kConfig, "{}.partial_rotary_factor is {}: only whole heads are rotated (1)", parent, rotary);
  const auto type = get_text(rope, "rope_type");
  const std::string name = type ? *type : get_text(rope, "type").value_or("default");
  if (name == "default") return result;
  FERRY_CHECK(name == "linear" || name == "llama3", kConfig,
              "{}.rope_type is \"{}\": default, linear and llama3 are supported", parent, shown(name));
  scaling.factor = require_real(rope, "factor", parent);
  scaling.type = RopeScaling::Type::kLinear;
  if (name == "linear") return result;
  scaling.type = RopeScaling::Type::kLlama3;
  scaling.low_freq_factor = require_real(rope, "low_freq_factor", parent);
  scaling.high_freq_factor = require_real(rope, "high_freq_factor", parent);
  scaling.original_max_position_embeddings = get_int(rope, "original_max_position_embeddings").value_or(max_positions);
  return result;
}

// rope_theta and rope_scaling (transformers 4), rope_parameters (transformers 5), or both where they agree.
void read_rope(const Json& json, ModelConfig& config) {
  const std::optional<double> theta = get_real(json, "rope_theta");
  const auto read = [&](const char* key) -> std::optional<Rope> {
    const Json* rope = find(json, key);
    if (rope == nullptr || (rope->is_object() && rope->empty())) return std::nullopt;
    return parse_rope(*rope, key, theta.value_or(config.rope_theta), config.max_position_embeddings);
  };
  const std::optional<Rope> parameters = read("rope_parameters");
  const std::optional<Rope> scaling = read("rope_scaling");
  FERRY_CHECK(!parameters || !scaling || parameters->scaling == scaling->scaling, kConfig,
              "rope_scaling and rope_parameters contradict each other: delete one of them");
  const Rope rope = parameters ? *parameters : scaling.value_or(Rope{theta.value_or(config.rope_theta), {}});
  FERRY_CHECK(!theta || *theta == rope.theta, kConfig,
              "rope_theta is {} but {} within rope_parameters: delete one of them", theta.value_or(0), rope.theta);
  config.rope_theta = rope.theta;
  config.rope_scaling = rope.scaling;
}

ModelConfig from_json(const Json& json) {
  check_architecture(json);
  check_unsupported(json);
  ModelConfig config;
  config.vocab_size = require_int(json, "vocab_size");
  config.hidden_size = require_int(json, "hidden_size");
  config.intermediate_size = require_int(json, "intermediate_size");
  config.n_layers = require_int(json, "num_hidden_layers");
  config.n_heads = require_int(json, "num_attention_heads");
  config.n_kv_heads = get_int(json, "num_key_value_heads").value_or(config.n_heads);
  const std::optional<std::int64_t> head_dim = get_int(json, "head_dim");
  if (head_dim) {
    config.head_dim = *head_dim;
  } else if (config.n_heads > 0) {
    FERRY_CHECK(config.hidden_size % config.n_heads == 0, kConfig,
                "head_dim is missing and hidden_size = {} is not a multiple of num_attention_heads = {}",
                config.hidden_size, config.n_heads);
    config.head_dim = config.hidden_size / config.n_heads;
  }
  config.max_position_embeddings = get_int(json, "max_position_embeddings").value_or(2048);
  config.rms_norm_eps = get_real(json, "rms_norm_eps").value_or(1e-6);
  config.initializer_range = get_real(json, "initializer_range").value_or(0.02);
  config.tie_word_embeddings = get_bool(json, "tie_word_embeddings");
  read_rope(json, config);
  config.validate();
  return config;
}

void check_int(const char* field, std::int64_t value, std::int64_t max) {
  FERRY_CHECK(value >= 1 && value <= max, kConfig, "{} is {}, expected 1 to {}", field, value, max);
}

// Lower bounds; false for NaN.
void check_real(const char* field, double value, bool above_min, const char* min, double max) {
  FERRY_CHECK(above_min && value <= max, kConfig, "{} is {}, expected {} and <= {}", field, value, min, max);
}

void validate_rope(const ModelConfig& config) {
  check_real("rope_theta", config.rope_theta, config.rope_theta > 0, "> 0", 1e15);
  const RopeScaling& scaling = config.rope_scaling;
  if (scaling.type == RopeScaling::Type::kDefault) return;
  check_real("rope_scaling.factor", scaling.factor, scaling.factor >= 1, ">= 1", 1e6);
  if (scaling.type == RopeScaling::Type::kLinear) return;
  check_real("rope_scaling.low_freq_factor", scaling.low_freq_factor, scaling.low_freq_factor > 0, "> 0", 1e6);
  check_real("rope_scaling.high_freq_factor", scaling.high_freq_factor, scaling.high_freq_factor > 0, "> 0", 1e6);
  FERRY_CHECK(scaling.high_freq_factor > scaling.low_freq_factor, kConfig,
              "rope_scaling.high_freq_factor is {}, expected more than low_freq_factor = {}", scaling.high_freq_factor,
              scaling.low_freq_factor);
  check_int("rope_scaling.original_max_position_embeddings", scaling.original_max_position_embeddings, kMaxPositions);
}

// The object of rope_scaling; null for the default type, which needs none.
Json rope_scaling_json(const RopeScaling& scaling) {
  if (scaling.type == RopeScaling::Type::kDefault) return nullptr;
  if (scaling.type == RopeScaling::Type::kLinear) return {{"rope_type", "linear"}, {"factor", scaling.factor}};
  return {{"rope_type", "llama3"},
          {"factor", scaling.factor},
          {"low_freq_factor", scaling.low_freq_factor},
          {"high_freq_factor", scaling.high_freq_factor},
          {"original_max_position_embeddings", scaling.original_max_position_embeddings}};
}

// transformers 4 reads rope_theta and rope_scaling and so does 5, which prefers rope_parameters where a file has it.
void write_rope(const ModelConfig& config, Json& json) {
  const Json scaling = rope_scaling_json(config.rope_scaling);
  json["rope_theta"] = config.rope_theta;
  json["rope_scaling"] = scaling;
  if (!json.contains("rope_parameters")) return;
  Json parameters = scaling.is_null() ? Json{{"rope_type", "default"}} : scaling;
  parameters["rope_theta"] = config.rope_theta;
  json["rope_parameters"] = parameters;
}

}  // namespace

void ModelConfig::validate() const {
  check_int("vocab_size", vocab_size, kMaxVocab);
  check_int("hidden_size", hidden_size, kMaxWidth);
  check_int("intermediate_size", intermediate_size, kMaxFfn);
  check_int("num_hidden_layers", n_layers, kMaxLayers);
  check_int("num_attention_heads", n_heads, kMaxHeads);
  check_int("num_key_value_heads", n_kv_heads, kMaxHeads);
  FERRY_CHECK(n_heads % n_kv_heads == 0, kConfig,
              "num_attention_heads is {}, expected a multiple of num_key_value_heads = {}", n_heads, n_kv_heads);
  check_int("head_dim", head_dim, kMaxHeadDim);
  FERRY_CHECK(head_dim % 2 == 0, kConfig, "head_dim is {}, expected an even number (rotary pairs)", head_dim);
  check_int("max_position_embeddings", max_position_embeddings, kMaxPositions);
  check_real("rms_norm_eps", rms_norm_eps, rms_norm_eps > 0, "> 0", 1);
  check_real("initializer_range", initializer_range, initializer_range >= 0, ">= 0", 1);
  validate_rope(*this);
}

ModelConfig load_model_config(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::path file = std::filesystem::is_directory(path, error) ? path / "config.json" : path;
  std::string text = read_text_file(file);
  try {
    ModelConfig config = from_json(parse_object(text));
    config.original_json = std::move(text);
    return config;
  } catch (const Error& fault) {
    throw Error(fault.kind(), fmt::format("{}: {}", file.string(), fault.what()));
  }
}

std::string to_hugging_face_json(const ModelConfig& config, const std::string& torch_dtype) {
  FERRY_CHECK(torch_dtype == "float32" || torch_dtype == "bfloat16", kConfig,
              "torch_dtype is '{}', expected float32 or bfloat16", shown(torch_dtype));
  config.validate();
  // Without a file there are no special tokens; transformers would assume ids 1 and 2.
  Json json = config.original_json.empty() ? Json{{"bos_token_id", nullptr}, {"eos_token_id", nullptr}}
                                           : parse_object(config.original_json);
  json["architectures"] = Json::array({"LlamaForCausalLM"});
  json["model_type"] = "llama";
  json["vocab_size"] = config.vocab_size;
  json["hidden_size"] = config.hidden_size;
  json["intermediate_size"] = config.intermediate_size;
  json["num_hidden_layers"] = config.n_layers;
  json["num_attention_heads"] = config.n_heads;
  json["num_key_value_heads"] = config.n_kv_heads;
  json["head_dim"] = config.head_dim;
  json["hidden_act"] = "silu";
  json["max_position_embeddings"] = config.max_position_embeddings;
  json["rms_norm_eps"] = config.rms_norm_eps;
  json["tie_word_embeddings"] = config.tie_word_embeddings;
  json["initializer_range"] = config.initializer_range;
  json["attention_bias"] = false;
  json["mlp_bias"] = false;
  json["torch_dtype"] = torch_dtype;
  if (json.contains("dtype")) json["dtype"] = torch_dtype;
  write_rope(config, json);
  return json.dump(2) + "\n";
}

}  // namespace ferry
