// SPDX-License-Identifier: Apache-2.0
#include "config/model_config.h"

#include "catch.h"
#include "temp_file.h"
#include "thrown.h"

namespace ferry {
namespace {

// A complete config.json; `extra` is put before the closing brace.
std::string json(const std::string& extra = "") {
  return R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 512, "hidden_size": 64,
    "intermediate_size": 172, "num_hidden_layers": 5, "num_attention_heads": 8)" +
         (extra.empty() ? extra : ", " + extra) + "}";
}

// json() with the field `key` changed to `value`.
std::string with(const std::string& key, const std::string& value) {
  std::string text = json();
  const std::size_t begin = text.find(':', text.find("\"" + key + "\"")) + 1;
  const std::size_t end = text.find_first_of(",}", text[begin + 1] == '[' ? text.find(']', begin) : begin);
  return text.replace(begin, end - begin, " " + value);
}

ModelConfig loaded(const std::string& text) {
  const TempFolder folder;
  return load_model_config(folder.write("config.json", text));
}

// The message without "kind: path: ".
std::string refusal(const std::string& text) {
  const std::string message = thrown([&] { loaded(text); });
  const std::size_t name = message.find("config.json: ");
  return name == std::string::npos ? message : message.substr(name + std::string("config.json: ").size());
}

const std::string kLlama3 =
    R"({"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192})";

TEST_CASE("a folder or its config.json is read") {
  const TempFolder folder;
  const auto file = folder.write("config.json", json());
  CHECK(load_model_config(file).vocab_size == 512);
  CHECK(load_model_config(folder.path()).vocab_size == 512);
}

TEST_CASE("missing and null fields take Hugging Face's defaults") {
  for (const std::string& text : {json(), json(R"("head_dim": null, "num_key_value_heads": null, "rope_scaling": null,
      "rope_parameters": null, "rope_theta": null, "rms_norm_eps": null, "tie_word_embeddings": null,
      "hidden_act": null, "attention_bias": null, "max_position_embeddings": null, "pad_token_id": null)")}) {
    const ModelConfig config = loaded(text);
    CHECK(config.n_kv_heads == 8);
    CHECK(config.head_dim == 8);
    CHECK(config.max_position_embeddings == 2048);
    CHECK(config.rms_norm_eps == 1e-6);
    CHECK(config.rope_theta == 10000);
    CHECK(config.rope_scaling == RopeScaling{});
    CHECK(config.initializer_range == 0.02);
    CHECK_FALSE(config.tie_word_embeddings);
  }
}

TEST_CASE("given fields are read") {
  const ModelConfig config = loaded(json(R"("head_dim": 16, "num_key_value_heads": 2, "rope_theta": 500000,
      "rms_norm_eps": 1e-5, "tie_word_embeddings": true, "max_position_embeddings": 131072,
      "initializer_range": 0.01, "eos_token_id": [1, 2, 3], "dtype": "bfloat16", "torch_dtype": "float16")"));
  CHECK(config.n_layers == 5);
  CHECK(config.n_heads == 8);
  CHECK(config.n_kv_heads == 2);
  CHECK(config.head_dim == 16);
  CHECK(config.intermediate_size == 172);
  CHECK(config.rope_theta == 500000);
  CHECK(config.rms_norm_eps == 1e-5);
  CHECK(config.tie_word_embeddings);
  CHECK(config.max_position_embeddings == 131072);
  CHECK(config.initializer_range == 0.01);
}

TEST_CASE("rope scaling is read in the old and the new form") {
  const RopeScaling llama3{RopeScaling::Type::kLlama3, 32, 1, 4, 8192};
  CHECK(loaded(json("\"rope_scaling\": " + kLlama3)).rope_scaling == llama3);
  const ModelConfig v5 = loaded(json(R"("rope_parameters": {"rope_theta": 500000.0, )" + kLlama3.substr(1)));
  CHECK(v5.rope_scaling == llama3);
  CHECK(v5.rope_theta == 500000);
  const RopeScaling linear = loaded(json(R"("rope_scaling": {"type": "linear", "factor": 2})")).rope_scaling;
  CHECK(linear.type == RopeScaling::Type::kLinear);
  CHECK(linear.factor == 2);
  CHECK(loaded(json(R"("rope_scaling": {"rope_type": "default"})")).rope_scaling == RopeScaling{});
  CHECK(loaded(json(R"("rope_scaling": {})")).rope_scaling == RopeScaling{});
}

TEST_CASE("llama3 scaling without its original length takes max_position_embeddings") {
  const ModelConfig config = loaded(json(R"("max_position_embeddings": 4096, "rope_scaling": {"rope_type": "llama3",
      "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4})"));
  CHECK(config.rope_scaling.original_max_position_embeddings == 4096);
}

TEST_CASE("a training length below the original length keeps its scaling") {
  const ModelConfig config = loaded(json("\"max_position_embeddings\": 2048, \"rope_scaling\": " + kLlama3));
  CHECK(config.rope_scaling.original_max_position_embeddings == 8192);
}

TEST_CASE("both rope forms together must agree") {
  CHECK(refusal(json(R"("rope_theta": 10000.0, "rope_scaling": )" + kLlama3 + ", \"rope_parameters\": " + kLlama3))
            .empty());
  CHECK(refusal(json("\"rope_scaling\": " + kLlama3 + R"(, "rope_parameters": {"rope_type": "default"})")) ==
        "rope_scaling and rope_parameters contradict each other: delete one of them");
  CHECK(refusal(json(R"("rope_theta": 10000, "rope_parameters": {"rope_theta": 500000})")) ==
        "rope_theta is 10000 but 500000 within rope_parameters: delete one of them");
}

TEST_CASE("an unsupported rope type is refused by name") {
  CHECK(refusal(json(R"("rope_scaling": {"rope_type": "yarn", "factor": 4})")) ==
        "rope_scaling.rope_type is \"yarn\": default, linear and llama3 are supported");
}

TEST_CASE("rope scaling of another type than an object is refused") {
  CHECK(refusal(json(R"("rope_scaling": "llama3")")) == "rope_scaling is \"llama3\", expected an object or null");
}

TEST_CASE("a missing field of rope scaling is named") {
  CHECK(refusal(json(R"("rope_scaling": {"rope_type": "linear"})")) == "rope_scaling.factor is missing");
  CHECK(refusal(json(R"("rope_scaling": {"rope_type": "llama3", "factor": 8})")) ==
        "rope_scaling.low_freq_factor is missing");
  CHECK(refusal(json(R"("rope_parameters": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1})")) ==
        "rope_parameters.high_freq_factor is missing");
}

TEST_CASE("rope scaling out of range is refused") {
  CHECK(refusal(json(R"("rope_scaling": {"type": "linear", "factor": 0.5})")) ==
        "rope_scaling.factor is 0.5, expected >= 1 and <= 1000000");
  CHECK(refusal(
            json(R"("rope_scaling": {"type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4})")) ==
        "rope_scaling.high_freq_factor is 4, expected more than low_freq_factor = 4");
  CHECK(refusal(json(R"("rope_theta": 0)")) == "rope_theta is 0, expected > 0 and <= 1000000000000000");
}

TEST_CASE("partly rotated heads are refused") {
  CHECK(refusal(json(R"("partial_rotary_factor": 0.5)")) ==
        "partial_rotary_factor is 0.5: only whole heads are rotated (1)");
  CHECK(refusal(json(R"("rope_parameters": {"partial_rotary_factor": 0.5})")) ==
        "rope_parameters.partial_rotary_factor is 0.5: only whole heads are rotated (1)");
}

TEST_CASE("bias keys set true are refused by name") {
  CHECK(refusal(json("\"attention_bias\": true")) == "attention_bias is true: biases are not supported");
  CHECK(refusal(json("\"mlp_bias\": true")) == "mlp_bias is true: biases are not supported");
  CHECK(refusal(json("\"mlp_bias\": 1")) == "mlp_bias is 1, expected true or false");
}

TEST_CASE("another activation is refused by name") {
  CHECK(refusal(json("\"hidden_act\": \"gelu\"")) == "hidden_act is \"gelu\": only \"silu\" is supported");
}

TEST_CASE("dropout is refused") {
  CHECK(refusal(json("\"attention_dropout\": 0.1")) ==
        "attention_dropout is 0.1: dropout is not supported, set it to 0");
}

TEST_CASE("quantised models are refused") {
  CHECK(refusal(json("\"quantization_config\": {\"bits\": 4}")) ==
        "quantization_config is given: quantised models are not supported, export the weights as bf16 first");
}

TEST_CASE("another model type is refused by name") {
  CHECK(refusal(with("model_type", "\"mistral\"")) == "model_type is \"mistral\": only \"llama\" is supported");
}

TEST_CASE("another architecture is refused by name") {
  CHECK(refusal(with("architectures", "[\"LlamaForSequenceClassification\"]")) ==
        "architectures is [\"LlamaForSequenceClassification\"]: only [\"LlamaForCausalLM\"] is supported");
}

TEST_CASE("model_type or architectures is enough, neither is refused") {
  CHECK(refusal(with("model_type", "null")).empty());
  CHECK(refusal(with("architectures", "null")).empty());
  CHECK(refusal("{\"vocab_size\": 5}") ==
        "neither model_type nor architectures is given: expected model_type = \"llama\"");
}

TEST_CASE("a missing size is named") {
  for (const char* key :
       {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"}) {
    CHECK(refusal(with(key, "null")) == std::string(key) + " is missing");
  }
}

TEST_CASE("sizes that are no integers are refused") {
  CHECK(refusal(with("hidden_size", "64.0")) == "hidden_size is 64.0, expected a 64-bit integer");
  CHECK(refusal(with("hidden_size", "\"64\"")) == "hidden_size is \"64\", expected a 64-bit integer");
  CHECK(refusal(with("hidden_size", "true")) == "hidden_size is true, expected a 64-bit integer");
  CHECK(refusal(with("hidden_size", "[64]")) == "hidden_size is [64], expected a 64-bit integer");
}

TEST_CASE("sizes out of range are refused") {
  CHECK(refusal(with("hidden_size", "-64")) == "hidden_size is -64, expected 1 to 1048576");
  CHECK(refusal(with("vocab_size", "0")) == "vocab_size is 0, expected 1 to 16777216");
  CHECK(refusal(with("num_hidden_layers", "5000")) == "num_hidden_layers is 5000, expected 1 to 4096");
  CHECK(refusal(with("num_attention_heads", "0")) == "num_attention_heads is 0, expected 1 to 65536");
  CHECK(refusal(with("num_attention_heads", "-8")) == "num_attention_heads is -8, expected 1 to 65536");
  CHECK(refusal(with("hidden_size", "18446744073709551615")) ==
        "hidden_size is 18446744073709551615, expected a 64-bit integer");
  CHECK(refusal(with("hidden_size", "9223372036854775807")) ==
        "head_dim is missing and hidden_size = 9223372036854775807 is not a multiple of num_attention_heads = 8");
}

TEST_CASE("numbers out of range are refused") {
  CHECK(refusal(json("\"rms_norm_eps\": 0")) == "rms_norm_eps is 0, expected > 0 and <= 1");
  CHECK(refusal(json("\"rms_norm_eps\": \"1e-5\"")) == "rms_norm_eps is \"1e-5\", expected a number");
  CHECK(refusal(json("\"initializer_range\": -1")) == "initializer_range is -1, expected >= 0 and <= 1");
  CHECK(refusal(json("\"max_position_embeddings\": 0")) == "max_position_embeddings is 0, expected 1 to 2147483647");
}

TEST_CASE("heads that do not divide are refused") {
  CHECK(refusal(json("\"num_key_value_heads\": 3")) ==
        "num_attention_heads is 8, expected a multiple of num_key_value_heads = 3");
  CHECK(refusal(json("\"num_key_value_heads\": 0")) == "num_key_value_heads is 0, expected 1 to 65536");
  CHECK(refusal(with("hidden_size", "65")) ==
        "head_dim is missing and hidden_size = 65 is not a multiple of num_attention_heads = 8");
  CHECK(refusal(json("\"head_dim\": 7")) == "head_dim is 7, expected an even number (rotary pairs)");
}

TEST_CASE("a head_dim given by hand need not divide hidden_size") {
  CHECK(loaded(with("hidden_size", "65, \"head_dim\": 10")).head_dim == 10);
}

TEST_CASE("text that is not JSON is refused with its position") {
  const std::string message = refusal("{\"a\": 1,\n nonsense}");
  CHECK(message.find("not JSON: parse error at line 2, column 3") == 0);
  CHECK(refusal("").find("not JSON: ") == 0);
  CHECK(refusal(json() + "trailing").find("not JSON: ") == 0);
  CHECK(refusal("{\"a\": \"\xff\"}").find("not JSON: ") == 0);
  CHECK(refusal(json("\"rope_theta\": 1e999")).find("not JSON: number overflow") == 0);
  CHECK(refusal(json("\"rope_theta\": NaN")).find("not JSON: ") == 0);
}

TEST_CASE("JSON that is no object is refused") { CHECK(refusal("[1, 2]") == "[1,2] is not a JSON object"); }

TEST_CASE("a duplicate field is refused") {
  CHECK(refusal(json("\"hidden_size\": 128")) == "hidden_size is given twice");
  CHECK(refusal(json(R"("other": {"a": 1, "a": 2})")) == "a is given twice");
  CHECK(refusal(json(R"("x": {"a": 1}, "y": {"a": 1}, "z": [{"a": 1}, {"a": 1}])")).empty());
}

TEST_CASE("deep nesting is refused") {
  CHECK(refusal(json("\"x\": " + std::string(500000, '['))) == "nested deeper than 32 levels");
  std::string objects;
  for (int i = 0; i < 100000; ++i) objects += "{\"a\":";
  CHECK(refusal(json("\"x\": " + objects)) == "nested deeper than 32 levels");
}

TEST_CASE("messages stay short under long values") {
  CHECK(refusal(with("model_type", "\"" + std::string(500000, 'x') + "\"")).size() < 200);
  CHECK(refusal(with("hidden_size", "[" + std::string(200000, ' ') + "1]")).size() < 200);
}

TEST_CASE("errors name the file") {
  const TempFolder folder;
  const auto file = folder.write("config.json", "{}");
  CHECK(thrown([&] { load_model_config(folder.path()); }).find("config: " + file.string() + ": ") == 0);
  CHECK(thrown([] { load_model_config("no/such"); }) == "io: no/such: no such file");
}

// What a load of the exported text gives, without the text itself.
ModelConfig round_trip(const ModelConfig& config) { return loaded(to_hugging_face_json(config, "bfloat16")); }

void check_same(const ModelConfig& a, const ModelConfig& b) {
  CHECK(a.vocab_size == b.vocab_size);
  CHECK(a.hidden_size == b.hidden_size);
  CHECK(a.intermediate_size == b.intermediate_size);
  CHECK(a.n_layers == b.n_layers);
  CHECK(a.n_heads == b.n_heads);
  CHECK(a.n_kv_heads == b.n_kv_heads);
  CHECK(a.head_dim == b.head_dim);
  CHECK(a.max_position_embeddings == b.max_position_embeddings);
  CHECK(a.rms_norm_eps == b.rms_norm_eps);
  CHECK(a.rope_theta == b.rope_theta);
  CHECK(a.rope_scaling == b.rope_scaling);
  CHECK(a.tie_word_embeddings == b.tie_word_embeddings);
  CHECK(a.initializer_range == b.initializer_range);
}

TEST_CASE("an exported config reads back equal") {
  const std::string odd = "\"rms_norm_eps\": 3.3333333333333335e-6, \"num_key_value_heads\": 2, \"head_dim\": 16";
  for (const std::string& text :
       {json(), json(odd), json("\"tie_word_embeddings\": true, \"rope_scaling\": " + kLlama3),
        json(R"("rope_scaling": {"type": "linear", "factor": 2})"),
        json(R"("rope_parameters": {"rope_type": "default", "rope_theta": 500000.0})"),
        json(R"("rope_parameters": {"rope_theta": 500000.0, )" + kLlama3.substr(1))}) {
    const ModelConfig config = loaded(text);
    check_same(round_trip(config), config);
  }
}

TEST_CASE("export keeps the fields that it does not interpret") {
  const ModelConfig config = loaded(json(R"("eos_token_id": [128001, 128008], "pad_token_id": null, "use_cache": true,
      "my_field": {"nested": [1, "two"]}, "torch_dtype": "float32", "dtype": "float32")"));
  const std::string text = to_hugging_face_json(config, "bfloat16");
  CHECK(text.find("\"my_field\": {\n    \"nested\": [\n      1,\n      \"two\"\n    ]\n  }") != std::string::npos);
  CHECK(text.find("\"eos_token_id\": [\n    128001,\n    128008\n  ]") != std::string::npos);
  CHECK(text.find("\"pad_token_id\": null") != std::string::npos);
  CHECK(text.find("\"use_cache\": true") != std::string::npos);
  CHECK(text.find("\"torch_dtype\": \"bfloat16\"") != std::string::npos);
  CHECK(text.find("\"dtype\": \"bfloat16\"") != std::string::npos);
}

TEST_CASE("export writes the config, not the file it came from") {
  ModelConfig config = loaded(
      json(R"("max_position_embeddings": 131072, "rope_parameters": {"rope_theta": 500000.0, )" + kLlama3.substr(1)));
  config.max_position_embeddings = 2048;
  config.n_layers = 2;
  config.rope_scaling = RopeScaling{};
  check_same(round_trip(config), config);
}

TEST_CASE("a config without a file names no special tokens") {
  ModelConfig config = loaded(json());
  config.original_json.clear();
  CHECK(to_hugging_face_json(config, "float32").find("\"eos_token_id\": null") != std::string::npos);
}

TEST_CASE("export refuses another dtype and an invalid config") {
  ModelConfig config = loaded(json());
  CHECK(thrown([&] { to_hugging_face_json(config, "bf16"); }) ==
        "config: torch_dtype is 'bf16', expected float32 or bfloat16");
  config.head_dim = 0;
  CHECK(thrown([&] { to_hugging_face_json(config, "float32"); }) == "config: head_dim is 0, expected 1 to 4096");
}

}  // namespace
}  // namespace ferry
