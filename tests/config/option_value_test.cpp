// SPDX-License-Identifier: Apache-2.0
#include "config/option_value.h"

#include <cmath>
#include <limits>

#include "catch.h"
#include "thrown.h"

namespace ferry {
namespace {

const Option& option(const char* key) {
  REQUIRE(find_option(key) != nullptr);
  return *find_option(key);
}

// The message of storing `value`, without its kind; "" when it is taken.
std::string refusal(const char* key, const OptionValue& value) {
  RunConfig config;
  const std::string message = thrown([&] { set_option(config, option(key), value, key); });
  return message.empty() ? message : message.substr(std::string("config: ").size());
}

TEST_CASE("values of every type are stored") {
  RunConfig config;
  set_option(config, option("steps"), std::int64_t{7}, "");
  set_option(config, option("lr"), 0.5, "");
  set_option(config, option("weight_decay"), std::int64_t{1}, "");
  set_option(config, option("quiet"), true, "");
  set_option(config, option("output"), std::string("out/a"), "");
  set_option(config, option("backend"), std::string("cpu:sync"), "");
  set_option(config, option("schedule"), std::string("wsd"), "");
  set_option(config, option("train_data"), std::vector<std::string>{"a", "b"}, "");
  set_option(config, option("val_data"), std::string("c"), "");
  set_option(config, option("dtype"), std::string("f32"), "");
  CHECK(config.steps == 7);
  CHECK(config.lr == 0.5);
  CHECK(config.weight_decay == 1);
  CHECK(config.quiet);
  CHECK(config.output == "out/a");
  CHECK(config.backend == "cpu:sync");
  CHECK(config.schedule == RunConfig::Schedule::kWsd);
  CHECK(config.train_data == std::vector<std::string>{"a", "b"});
  CHECK(config.val_data == std::vector<std::string>{"c"});
  CHECK(config.dtype == DType::kF32);
}

TEST_CASE("enumerators stand in the order of their choices") {
  const auto stored = [](const char* key, const char* text) {
    RunConfig config;
    set_option(config, option(key), std::string(text), "");
    return config;
  };
  CHECK(stored("dtype", "bf16").dtype == DType::kBf16);
  CHECK(stored("data_format", "shard").data_format == RunConfig::DataFormat::kShard);
  CHECK(stored("data_format", "u16").data_format == RunConfig::DataFormat::kU16);
  CHECK(stored("data_format", "u32").data_format == RunConfig::DataFormat::kU32);
  CHECK(stored("data_format", "bytes").data_format == RunConfig::DataFormat::kBytes);
  CHECK(stored("order", "shuffled").order == RunConfig::Order::kShuffled);
  CHECK(stored("schedule", "linear").schedule == RunConfig::Schedule::kLinear);
  CHECK(stored("schedule", "cosine").schedule == RunConfig::Schedule::kCosine);
  CHECK(stored("optimizer_state", "bf16").optimizer_state == RunConfig::OptimizerState::kBf16);
  CHECK(stored("optimizer_state", "mixed").optimizer_state == RunConfig::OptimizerState::kMixed);
  CHECK(stored("rounding", "nearest").rounding == RunConfig::Rounding::kNearest);
  CHECK(stored("offload", "layers").offload == RunConfig::Offload::kLayers);
  CHECK(stored("offload", "none").offload == RunConfig::Offload::kNone);
  CHECK(stored("residuals", "device").residuals == RunConfig::Residuals::kDevice);
  CHECK(stored("residuals", "host").residuals == RunConfig::Residuals::kHost);
}

TEST_CASE("an integer out of range is refused") {
  CHECK(refusal("steps", std::int64_t{0}) == "steps = 0: expected an integer from 1 to 1000000000");
  CHECK(refusal("weight_slots", std::int64_t{65}) == "weight_slots = 65: expected an integer from 2 to 64");
  CHECK(refusal("weight_slots", std::int64_t{64}).empty());
  CHECK(refusal("weight_slots", std::int64_t{1}) == "weight_slots = 1: expected an integer from 2 to 64");
  CHECK(refusal("seed", std::int64_t{-1}) == "seed = -1: expected an integer >= 0");
  CHECK(refusal("seed", std::numeric_limits<std::int64_t>::max()).empty());
}

TEST_CASE("a size is a number and a unit") {
  CHECK(parse_size("6.8GB") == 6'800'000'000);
  CHECK(parse_size("4GiB") == std::int64_t{4} << 30);
  CHECK(parse_size("0.5MiB") == 1 << 19);
  CHECK(parse_size("100kB") == 100'000);
  CHECK(parse_size("7B") == 7);
  CHECK(parse_size("1.5TiB") == std::int64_t{3} << 39);
  for (const char* text : {"", "4", "GB", "4 GB", "4gb", "-4GB", "+4GB", "4GBs", "1e3GB", "0GB", "0.1B", "4.GiBB",
                           "..GB", "999999999TiB", "nanGB", "infGB"}) {
    CAPTURE(text);
    CHECK_FALSE(parse_size(text).has_value());
  }
}

TEST_CASE("memory is given as a word or as a size") {
  for (const char* text : {"auto", "min", "6.8GB", "4GiB"}) CHECK(refusal("gpu_memory", std::string(text)).empty());
  CHECK(refusal("gpu_memory", std::string("most")) ==
        "gpu_memory = \"most\": expected auto, min, or a size such as 6.8GB or 4GiB");
  CHECK(refusal("gpu_memory", std::int64_t{4}) ==
        "gpu_memory = 4: expected auto, min, or a size such as 6.8GB or 4GiB");
  CHECK(refusal("host_memory", std::string("min")) ==
        "host_memory = \"min\": expected auto, or a size such as 6.8GB or 4GiB");
}

TEST_CASE("name patterns are a list of texts") {
  CHECK(refusal("freeze", std::vector<std::string>{"*norm*", "model.layers.0.*"}).empty());
  CHECK(refusal("freeze", std::string("*")).empty());
  CHECK(refusal("freeze", true) == "freeze = true: expected one or more name patterns (UTF-8, not starting with -)");
}

TEST_CASE("a fraction is not an integer") {
  CHECK(refusal("seq_len", 2048.0) == "seq_len = 2048: expected an integer from 1 to 2147483647");
}

TEST_CASE("a number out of range is refused") {
  CHECK(refusal("lr", 0.0) == "lr = 0: expected a number > 0 and <= 10");
  CHECK(refusal("lr", 10.0).empty());
  CHECK(refusal("beta1", 1.0) == "beta1 = 1: expected a number >= 0 and < 1");
  CHECK(refusal("beta1", 0.0).empty());
  CHECK(refusal("min_lr_ratio", 1.5) == "min_lr_ratio = 1.5: expected a number >= 0 and <= 1");
}

TEST_CASE("NaN and infinity are refused") {
  CHECK(refusal("lr", std::nan("")) == "lr = nan: expected a number > 0 and <= 10");
  CHECK(refusal("weight_decay", HUGE_VAL) == "weight_decay = inf: expected a number >= 0 and <= 100");
  CHECK(refusal("temperature", -HUGE_VAL) == "temperature = -inf: expected a number >= 0 and <= 100");
}

TEST_CASE("text is no number and a number is no text") {
  CHECK(refusal("lr", std::string("high")) == "lr = \"high\": expected a number > 0 and <= 10");
  CHECK(refusal("output", std::int64_t{1}) == "output = 1: expected a path (UTF-8, not starting with -)");
}

TEST_CASE("a switch takes true and false only") {
  CHECK(refusal("quiet", std::int64_t{1}) == "quiet = 1: expected true or false");
}

TEST_CASE("a word with a number is taken where the option has one") {
  CHECK(refusal("mlp_chunk", std::string("tokens:2048")).empty());
  CHECK(refusal("mlp_chunk", std::string("features:1")).empty());
  CHECK(refusal("recompute", std::string("keep:2147483647")).empty());
  CHECK(refusal("head", std::string("auto")).empty());
  const std::string number = " with n from 1 to 2147483647";
  CHECK(refusal("recompute", std::string("keep")) ==
        "recompute = \"keep\": expected one of auto, full, lean, none, or keep:n" + number);
  CHECK(refusal("mlp_chunk", std::string("token:8")) ==
        "mlp_chunk = \"token:8\": expected one of auto, none, or tokens:n, or features:n" + number +
            ": did you mean 'tokens'?");
  for (const char* text : {"tokens:", "tokens:0", "tokens:-1", "tokens:8x", "tokens: 8", "tokens:2147483648",
                           "tokens:99999999999999999999", "chunks:1", ":1"}) {
    CAPTURE(text);
    CHECK(refusal("head", std::string(text))
              .starts_with(std::string("head = \"") + text + "\": expected one of auto, chunks, logits, or tokens:n" +
                           number));
  }
}

TEST_CASE("the number is read") {
  CHECK(parse_counted("tokens:2048").word == "tokens");
  CHECK(parse_counted("tokens:2048").count == 2048);
  CHECK(parse_counted("none").word == "none");
  CHECK(parse_counted("none").count == 0);
}

TEST_CASE("a choice lists what is allowed") {
  CHECK(refusal("schedule", std::string("cos")) == "schedule = \"cos\": expected one of constant, linear, cosine, wsd");
  CHECK(refusal("backend", std::string("gpu")) ==
        "backend = \"gpu\": expected one of auto, cpu, cpu:sync, cuda, trace:cpu, or check:A,B with two of "
        "these");
}

TEST_CASE("the backend may be a check of two") {
  CHECK(refusal("backend", std::string("check:cuda,cpu")).empty());
  CHECK(refusal("backend", std::string("check:cpu:sync,auto")).empty());
  for (const char* wrong : {"check", "check:", "check:cuda", "check:cuda,", "check:cuda,gpu", "check:cuda,cpu,cpu",
                            "check:check:cuda,cpu,cpu", "trace:cuda,cpu"}) {
    CHECK(!refusal("backend", std::string(wrong)).empty());
  }
}

TEST_CASE("a path is not empty, is UTF-8 and is no flag") {
  CHECK(refusal("output", std::string()) == "output = \"\": expected a path (UTF-8, not starting with -)");
  CHECK(refusal("output", std::string("--quiet")) ==
        "output = \"--quiet\": expected a path (UTF-8, not starting with -)");
  CHECK(refusal("log_file", std::string("\xff")) == "log_file = \"?\": expected a path (UTF-8, not starting with -)");
  CHECK(refusal("log_file", std::string("a\0b", 3)) ==
        "log_file = \"a\\u0000b\": expected a path (UTF-8, not starting with -)");
}

TEST_CASE("a list of paths holds at least one, each a path") {
  const std::string expected = "expected one or more paths (UTF-8, not starting with -)";
  CHECK(refusal("train_data", std::vector<std::string>{}) == "train_data = []: " + expected);
  CHECK(refusal("train_data", std::vector<std::string>{"a", ""}) == "train_data = [\"a\", \"\"]: " + expected);
}

TEST_CASE("a prompt is not empty") {
  CHECK(refusal("prompt", std::string()) == "prompt = \"\": expected text (UTF-8, not empty)");
}

TEST_CASE("a refused value leaves the config as it was") {
  RunConfig config;
  thrown([&] { set_option(config, option("lr"), -1.0, ""); });
  CHECK(config == RunConfig{});
}

TEST_CASE("flag text is read as the option's type") {
  CHECK(parse_flag_text(option("steps"), {"12"}) == OptionValue(std::int64_t{12}));
  CHECK(parse_flag_text(option("lr"), {"3e-4"}) == OptionValue(3e-4));
  CHECK(parse_flag_text(option("quiet"), {"true"}) == OptionValue(true));
  CHECK(parse_flag_text(option("train_data"), {"a", "b"}) == OptionValue(std::vector<std::string>{"a", "b"}));
  CHECK(parse_flag_text(option("prompt"), {"12"}) == OptionValue(std::string("12")));
}

TEST_CASE("flag text that is not wholly a number stays text") {
  CHECK(parse_flag_text(option("steps"), {"12x"}) == OptionValue(std::string("12x")));
  CHECK(parse_flag_text(option("steps"), {"1e3"}) == OptionValue(std::string("1e3")));
  CHECK(parse_flag_text(option("steps"), {"99999999999999999999"}) == OptionValue(std::string("99999999999999999999")));
  CHECK(parse_flag_text(option("lr"), {" 1"}) == OptionValue(std::string(" 1")));
}

// A train config that is complete.
RunConfig complete() {
  RunConfig config;
  config.model = "tiny";
  config.train_data = {"a"};
  config.steps = 1;
  return config;
}

std::string complaint(const RunConfig& config) {
  return thrown([&] { validate(config, Command::kTrain); });
}

TEST_CASE("a complete config is valid, and other commands need none of it") {
  CHECK(complaint(complete()).empty());
  validate(RunConfig{}, Command::kGenerate);
  validate(RunConfig{}, Command::kBench);
  validate(RunConfig{}, Command::kExport);
  validate(RunConfig{}, Command::kInspect);
}

TEST_CASE("training needs a model") {
  RunConfig config = complete();
  config.model = "";
  CHECK(complaint(config) ==
        "config: no model: set model (a preset, a Hugging Face folder or a config.json) or init_from");
  config.init_from = "folder";
  CHECK(complaint(config).empty());
}

TEST_CASE("training needs data") {
  RunConfig config = complete();
  config.train_data = {};
  CHECK(complaint(config) == "config: no training data: set train_data");
}

TEST_CASE("exactly one of steps and epochs is given") {
  RunConfig config = complete();
  config.epochs = 2;
  CHECK(complaint(config) == "config: steps = 1 and epochs = 2 are both given: give one of them");
  config.steps = 0;
  CHECK(complaint(config).empty());
  config.epochs = 0;
  CHECK(complaint(config) == "config: no length of the run: give steps or epochs");
}

TEST_CASE("the tokens of a step fit 32 bits") {
  RunConfig config = complete();
  config.seq_len = 2147483647;
  config.batch_size = 1;
  CHECK(complaint(config).empty());
  config.batch_size = 2147483647;
  CHECK(complaint(config) ==
        "config: seq_len = 2147483647 times batch_size = 2147483647 is more than 2147483647 tokens in one step: lower "
        "one of them");
  config.seq_len = 2048;
  config.batch_size = 1024;
  config.accumulate = 1024;
  CHECK(complaint(config) ==
        "config: seq_len = 2048 times batch_size = 1024 times accumulate = 1024 is more than 2147483647 tokens in one "
        "step: lower one of them");
  config.accumulate = 1023;
  CHECK(complaint(config).empty());
}

TEST_CASE("f32 weights keep f32 moments") {
  RunConfig config = complete();
  config.dtype = DType::kF32;
  config.optimizer_state = RunConfig::OptimizerState::kBf16;
  CHECK(complaint(config) == "config: optimizer_state = bf16 needs dtype = bf16: f32 weights keep f32 moments");
  config.optimizer_state = RunConfig::OptimizerState::kMixed;
  CHECK(complaint(config) == "config: optimizer_state = mixed needs dtype = bf16: f32 weights keep f32 moments");
}

TEST_CASE("evaluation needs validation data") {
  RunConfig config = complete();
  config.eval_every = 5;
  CHECK(complaint(config) == "config: eval_every = 5 has nothing to evaluate: set val_data, or eval_every = 0");
}

}  // namespace
}  // namespace ferry
