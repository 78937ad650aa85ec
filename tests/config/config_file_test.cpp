// SPDX-License-Identifier: Apache-2.0
#include "config/config_file.h"

#include "catch.h"
#include "config/embedded_default.h"
#include "config/option_value.h"
#include "temp_file.h"
#include "thrown.h"

namespace ferry {
namespace {

RunConfig parsed(std::string_view text) {
  RunConfig config;
  read_config_text(text, "run.toml", config);
  return config;
}

std::string refusal(std::string_view text) {
  return thrown([&] { parsed(text); });
}

TEST_CASE("a config file sets what it names and nothing else") {
  RunConfig expected;
  expected.model = "tiny";
  expected.train_data = {"a.bin", "b # not a comment.bin"};
  expected.lr = 1e-3;
  expected.weight_decay = 1;
  expected.schedule = RunConfig::Schedule::kCosine;
  expected.quiet = true;
  CHECK(parsed("[model]\nmodel = \"tiny\"  # comment\n"
               "[data]\ntrain_data = [\"a.bin\", \"b # not a comment.bin\"]\n"
               "[optimizer]\nlr = 1e-3\nweight_decay = 1\nschedule = 'cosine'\n"
               "[run]\nquiet = true\n") == expected);
  CHECK(parsed("") == RunConfig{});
}

TEST_CASE("a list of one path may be written as text") {
  CHECK(parsed("[data]\ntrain_data = 'a'").train_data == std::vector<std::string>{"a"});
}

TEST_CASE("text that is not TOML is refused with its line") {
  const std::string message = refusal("[run]\nsteps = 1\nquiet =\n");
  CHECK(message.substr(0, 20) == "config: run.toml:3: ");
  CHECK(refusal("[run]\noutput = \"\xff\"").substr(0, 18) == "config: run.toml:2");
}

TEST_CASE("a duplicate key is refused with its line") {
  const std::string message = refusal("[run]\nsteps = 1\nquiet = true\nsteps = 2\n");
  CHECK(message.substr(0, 20) == "config: run.toml:4: ");
  CHECK(message.find("steps") != std::string::npos);
}

TEST_CASE("a duplicate section is refused with its line") {
  const std::string message = refusal("[run]\nsteps = 1\n[data]\n[run]\nquiet = true\n");
  CHECK(message.substr(0, 20) == "config: run.toml:4: ");
}

TEST_CASE("an unknown key is refused with its line, value and the nearest key") {
  CHECK(refusal("[run]\n\nstep = 5\n") ==
        "config: run.toml:3: unknown key 'step' = 5: did you mean 'steps'? (`ferry train --help-all` lists all)");
  CHECK(refusal("[run]\nxyzzyx = 'a'\n") ==
        "config: run.toml:2: unknown key 'xyzzyx' = \"a\" (`ferry train --help-all` lists all)");
}

TEST_CASE("a key in the wrong section is sent to its own") {
  CHECK(refusal("[model]\nlr = 0.1\n") == "config: run.toml:2: lr = 0.1 belongs under [optimizer], not under [model]");
}

TEST_CASE("a key before the first section is sent to its own") {
  CHECK(refusal("lr = 0.1\n") ==
        "config: run.toml:1: lr = 0.1 belongs under [optimizer], not before the first section");
}

TEST_CASE("an unknown section lists the sections and the nearest one") {
  CHECK(refusal("[optimiser]\nlr = 0.1\n") ==
        "config: run.toml:1: unknown section [optimiser]: did you mean 'optimizer'? (sections: model, data, optimizer, "
        "offload, run, generate, eval, inspect, bench, plan)");
}

TEST_CASE("a value out of range is refused with file, line, key, value and what is allowed") {
  CHECK(refusal("[optimizer]\nlr = -1\n") == "config: run.toml:2: lr = -1: expected a number > 0 and <= 10");
  CHECK(refusal("[optimizer]\nlr = nan\n") == "config: run.toml:2: lr = nan: expected a number > 0 and <= 10");
}

TEST_CASE("a value of another type is refused") {
  CHECK(refusal("[run]\nsteps = '5'\n") ==
        "config: run.toml:2: steps = \"5\": expected an integer from 1 to 1000000000");
  CHECK(refusal("[run]\nsteps = 5.0\n") == "config: run.toml:2: steps = 5: expected an integer from 1 to 1000000000");
}

TEST_CASE("tables, dates and mixed lists are no values") {
  CHECK(refusal("[run]\nsteps = {a = 1}\n") ==
        "config: run.toml:2: steps = { a = 1 }: expected an integer from 1 to 1000000000");
  CHECK(refusal("[run]\nsteps = 2024-01-01\n") ==
        "config: run.toml:2: steps = 2024-01-01: expected an integer from 1 to 1000000000");
  CHECK(refusal("[data]\ntrain_data = ['a', 1]\n") ==
        "config: run.toml:2: train_data = [ 'a', 1 ]: expected one or more paths (UTF-8, not starting with -)");
}

TEST_CASE("hostile nesting and long values end in a message, not a crash") {
  CHECK_FALSE(refusal("[run]\nsteps = " + std::string(100000, '[')).empty());
  CHECK_FALSE(refusal("[" + std::string(100000, 'a') + "]\n").empty());
  CHECK(refusal("[run]\n" + std::string(100000, 'a') + " = 1\n").size() < 400);
  CHECK(refusal("[run]\nsteps = '" + std::string(100000, 'a') + "'\n").size() < 400);
}

TEST_CASE("a missing config file is named") {
  RunConfig config;
  CHECK(thrown([&] { read_config_file("no/such.toml", config); }) == "io: no/such.toml: no such file");
}

TEST_CASE("a config file is named in its errors") {
  const TempFolder folder;
  const auto path = folder.write("a.toml", "[run]\nsteps = 0\n");
  RunConfig config;
  CHECK(thrown([&] { read_config_file(path, config); }) ==
        "config: " + path.string() + ":2: steps = 0: expected an integer from 1 to 1000000000");
}

TEST_CASE("the default config reads back equal") { CHECK(parsed(to_toml(RunConfig{})) == RunConfig{}); }

TEST_CASE("a saved config reads back equal, whatever its values") {
  RunConfig config;
  config.model = "a \"quoted\" \\ name";
  config.init_from = "caf\xc3\xa9/\t\x7f";
  config.train_data = {"a", "b,c", "[d]"};
  config.val_data = {"e"};
  config.prompt = "line\r\nline\n'''\"\"\"";
  config.lr = 0.1 + 0.2;
  config.eps = 1e-12;
  config.weight_decay = 1.0 / 3;
  config.seed = 9223372036854775807;
  config.epochs = 3;
  config.quiet = true;
  config.dtype = DType::kF32;
  config.accumulate = 3;
  config.recompute = "keep:3";
  config.mlp_chunk = "tokens:64";
  config.head = "logits";
  config.grad_clip = 1;
  config.check_finite = false;
  config.freeze = {"model.layers.0.*", "*norm*"};
  config.offload = RunConfig::Offload::kLayers;
  config.gpu_memory = "6.8GB";
  config.host_memory = "64GiB";
  config.resident_layers = 0;
  config.resident_state_layers = 2;
  config.residuals = RunConfig::Residuals::kHost;
  config.attention = RunConfig::Attention::kFerry;
  CHECK(parsed(to_toml(config)) == config);
}

TEST_CASE("every option survives a saved config") {
  for (const Option& option : option_table()) {
    RunConfig config;
    // The first of these that the option takes and that is not its default.
    for (const OptionValue& value :
         {OptionValue(true), OptionValue(false), OptionValue(std::int64_t{3}), OptionValue(std::int64_t{4}),
          OptionValue(std::int64_t{1'000'000'000}), OptionValue(0.5), OptionValue(std::string("f32")),
          OptionValue(std::string("bf16")), OptionValue(std::string("shuffled")), OptionValue(std::string("linear")),
          OptionValue(std::string("none")), OptionValue(std::string("u16")), OptionValue(std::string("cpu")),
          OptionValue(std::string("tokens:3")), OptionValue(std::string("logits")), OptionValue(std::string("host")),
          OptionValue(std::string("nearest")), OptionValue(std::string("ferry")), OptionValue(std::string("6.8GB"))}) {
      if (is_allowed(option, value) && config == RunConfig{}) set_option(config, option, value, option.key);
    }
    INFO(option.key);
    CHECK_FALSE(config == RunConfig{});
    CHECK(parsed(to_toml(config)) == config);
  }
}

TEST_CASE("the built-in config is a complete training config") {
  RunConfig config;
  read_config_text(embedded_default_config(), "configs/tiny.toml", config);
  validate(config, Command::kTrain);
  RunConfig from_file;
  read_config_file(FERRY_SOURCE_DIR "/configs/tiny.toml", from_file);
  CHECK(config == from_file);
}

}  // namespace
}  // namespace ferry
