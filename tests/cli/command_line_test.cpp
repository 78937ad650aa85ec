// SPDX-License-Identifier: Apache-2.0
#include "cli/command_line.h"

#include "catch.h"
#include "cli/run_setup.h"
#include "config/config_file.h"
#include "config/embedded_default.h"
#include "temp_file.h"
#include "thrown.h"

namespace ferry {
namespace {

using Args = std::vector<std::string>;

std::string refusal(const Args& args) {
  return thrown([&] { parse_command_line(args); });
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST_CASE("train without a file runs the built-in config") {
  RunConfig expected;
  read_config_text(embedded_default_config(), "", expected);
  const CommandLine line = parse_command_line({"train"});
  CHECK(line.command == Command::kTrain);
  CHECK(line.config == expected);
  CHECK(line.config_source == "built-in configs/tiny.toml");
  CHECK(line.text.empty());
}

const char* const kFile =
    "[model]\nmodel = 'tiny'\n[data]\ntrain_data = ['a', 'b']\n[optimizer]\nlr = 0.5\n[run]\nsteps = 7\nquiet = true\n";

TEST_CASE("a config file is given as an argument or as --config") {
  const TempFolder folder;
  const std::string file = folder.write("run.toml", kFile).string();
  for (const Args& args : {Args{"train", file}, Args{"train", "--config", file}, Args{"train", "--config=" + file}}) {
    const CommandLine line = parse_command_line(args);
    CHECK(line.config.steps == 7);
    CHECK(line.config.seq_len == 2048);  // the built-in config plays no part
    CHECK(line.config_source == file);
  }
}

TEST_CASE("flags win over the file, before and after it") {
  const TempFolder folder;
  const std::string file = folder.write("run.toml", kFile).string();
  const RunConfig config =
      parse_command_line({"train", "--lr", "1e-3", file, "--train-data", "c", "--no-quiet", "--steps=9"}).config;
  CHECK(config.lr == 1e-3);
  CHECK(config.train_data == std::vector<std::string>{"c"});
  CHECK_FALSE(config.quiet);
  CHECK(config.steps == 9);
  CHECK(config.model == "tiny");
  CHECK_FALSE(parse_command_line({"train", file, "--quiet=false"}).config.quiet);
}

TEST_CASE("on the line, one length of the run replaces the other of the file") {
  const TempFolder folder;
  const std::string file = folder.write("run.toml", kFile).string();
  const RunConfig config = parse_command_line({"train", file, "--epochs", "2"}).config;
  CHECK(config.steps == 0);
  CHECK(config.epochs == 2);
  CHECK(refusal({"train", file, "--epochs", "2", "--steps", "3"}) ==
        "config: steps = 3 and epochs = 2 are both given: give one of them");
}

TEST_CASE("a run shorter than the built-in one has a shorter warmup, unless the line gives it") {
  const auto warmup = [](std::vector<std::string> flags) {
    flags.insert(flags.begin(), "train");
    return parse_command_line(flags).config.warmup_steps;
  };
  CHECK(warmup({}) == 30);
  CHECK(warmup({"--steps", "1000"}) == 30);
  CHECK(warmup({"--steps", "12"}) == 3);
  CHECK(warmup({"--steps", "1"}) == 0);
  CHECK(warmup({"--steps", "12", "--warmup-steps", "30"}) == 30);
  CHECK(warmup({"--epochs", "2"}) == 30);
}

TEST_CASE("texts of one's own are not validated on the built-in config's text") {
  CHECK(parse_command_line({"train", "--train-data", "a"}).config.val_data.empty());
  CHECK(parse_command_line({"train", "--train-data", "a"}).config.eval_every == 0);
  CHECK(parse_command_line({"train", "--train-data", "a", "--val-data", "b"}).config.val_data == Args{"b"});
  CHECK_FALSE(parse_command_line({"train"}).config.val_data.empty());
}

TEST_CASE("a list flag is repeated") {
  CHECK(parse_command_line({"train", "--train-data", "a", "--train-data", "b"}).config.train_data ==
        std::vector<std::string>{"a", "b"});
}

TEST_CASE("text reaches the config as it is typed") {
  const CommandLine line = parse_command_line({"generate", "{}", "--prompt", "[a,b] 'c' \"d\" --e"});
  CHECK(line.config.model == "{}");
  CHECK(line.config.prompt == "[a,b] 'c' \"d\" --e");
  CHECK(parse_command_line({"generate", "m", "--prompt", "--x"}).config.prompt == "--x");
  CHECK(parse_command_line({"train", "--train-data", "{}", "--train-data", "[a,b]"}).config.train_data ==
        std::vector<std::string>{"{}", "[a,b]"});
}

TEST_CASE("generate takes its model as an argument or a flag") {
  CHECK(parse_command_line({"generate", "out/tiny", "--temperature", "0"}).config.model == "out/tiny");
  CHECK(parse_command_line({"generate", "--model", "out/tiny"}).config.model == "out/tiny");
  CHECK(refusal({"generate", "a", "--model", "b"}) == "config: ferry generate: two models, 'a' and --model: give one");
}

TEST_CASE("generate reads a training config too") {
  const TempFolder folder;
  const std::string file = folder.write("run.toml", kFile).string();
  CHECK(parse_command_line({"generate", "out/tiny", "--config", file}).config.model == "out/tiny");
}

TEST_CASE("eval takes its model as generate does, and keys from a training config") {
  const TempFolder folder;
  const std::string file = folder.write("run.toml", "[data]\nval_data = \"a.bin\"\n").string();
  const CommandLine line = parse_command_line({"eval", "out/tiny", "--config", file, "--seq-len", "64"});
  CHECK(line.config.model == "out/tiny");
  CHECK(line.config.val_data == Args{"a.bin"});
  CHECK(line.seq_len_given);
  CHECK_FALSE(line.dtype_given);
  CHECK(refusal({"eval", "a", "--model", "b"}) == "config: ferry eval: two models, 'a' and --model: give one");
  CHECK(refusal({"eval", "a"}) == "config: nothing to evaluate on: give --val-data FILE");
}

TEST_CASE("export takes two paths, inspect one") {
  CHECK(parse_command_line({"export", "a", "b", "--dtype", "f32"}).paths == Args{"a", "b"});
  CHECK(parse_command_line({"inspect", "a", "--all"}).paths == Args{"a"});
  CHECK(refusal({"export", "a"}) == "config: usage: ferry export SOURCE TARGET [flags]");
  CHECK(refusal({"inspect"}) == "config: usage: ferry inspect PATH [flags]");
  CHECK(has(refusal({"export", "a", "b", "c"}), "'c' is one argument too many"));
}

TEST_CASE("bench takes a target") {
  const CommandLine line = parse_command_line({"bench", "ops", "--threads", "3", "--dtype", "f32"});
  CHECK(line.command == Command::kBench);
  CHECK(line.bench_target == "ops");
  CHECK(line.config.threads == 3);
  CHECK(line.config.dtype == DType::kF32);
  CHECK(line.dtype_given);
  CHECK_FALSE(parse_command_line({"bench", "ops"}).dtype_given);
}

TEST_CASE("bench ops has fixed shapes, or those of a model") {
  CHECK(parse_command_line({"bench", "ops"}).runs_built_in());
  const CommandLine line =
      parse_command_line({"bench", "ops", "--model", "llama-3.2-1b", "--batch-size", "2", "--seq-len", "64"});
  CHECK_FALSE(line.runs_built_in());
  CHECK(line.config.batch_size == 2);
  CHECK(line.config.seq_len == 64);
  CHECK(refusal({"bench", "ops", "--seq-len", "64"}) ==
        "config: ferry bench ops: --seq-len needs a model (its shapes are fixed otherwise): add --model or a config "
        "file");
}

TEST_CASE("bench ops refuses a flag that would change nothing") {
  CHECK(refusal({"bench", "ops", "--offload", "none"}) ==
        "config: ferry bench ops: --offload changes nothing there: leave it out (other targets take it)");
  const TempFolder folder;
  const std::string file = folder.write("run.toml", kFile).string();
  CHECK(parse_command_line({"bench", "ops", file}).config_source == file);  // its keys may stand
  CHECK(has(refusal({"bench", "ops", file, "--steps", "3"}), "--steps changes nothing there"));
}

TEST_CASE("bench step and bench floor refuse a flag of another target") {
  CHECK(parse_command_line({"bench", "floor", "--head", "tokens:8"}).config.head == "tokens:8");
  CHECK(parse_command_line({"bench", "floor", "--floor-seconds", "1"}).config.floor_seconds == 1);
  for (const char* flag : {"--weight-slots", "--grad-slots", "--adamw-params", "--untimed-steps"}) {
    CHECK(has(refusal({"bench", "floor", flag, "20000000"}), "changes nothing there"));
  }
  CHECK(has(refusal({"bench", "floor", "--rates", "rates.json"}), "ferry bench floor: --rates changes nothing there"));
  CHECK(parse_command_line({"bench", "step", "--weight-slots", "3"}).config.weight_slots == 3);
  for (const char* flag : {"--floor-seconds", "--adamw-params", "--machine-seconds"}) {
    CHECK(has(refusal({"bench", "step", flag, "20000000"}), "changes nothing there"));
  }
}

TEST_CASE("threads and device reach the backend") {
  const BackendOptions given =
      backend_options(parse_command_line({"bench", "ops", "--threads", "3", "--device", "2"}).config);
  CHECK(given.threads == 3);
  CHECK(given.device == 2);
  CHECK(backend_options(RunConfig{}).device == 0);
  CHECK(refusal({"bench", "ops", "--device", "-1"}).find("expected an integer from 0 to 1023") != std::string::npos);
}

TEST_CASE("the choice of an attention reaches the backend") {
  const auto attention = [](const Args& args) { return backend_options(parse_command_line(args).config).attention; };
  CHECK(attention({"plan"}) == AttentionChoice::kAuto);
  CHECK(attention({"plan", "--attention", "cudnn"}) == AttentionChoice::kCudnn);
  CHECK(attention({"bench", "ops", "--attention", "ferry"}) == AttentionChoice::kFerry);
  CHECK(attention({"generate", "out", "--attention", "ferry"}) == AttentionChoice::kFerry);
  CHECK(has(refusal({"plan", "--attention", "flash"}), "one of auto, cudnn, ferry"));
}

TEST_CASE("bench machine takes what it measures by and where its rates go") {
  const CommandLine line = parse_command_line({"bench", "machine", "--threads", "3", "--adamw-params", "10000000",
                                               "--machine-seconds", "0.5", "--rates", "rates.json", "--device", "1"});
  CHECK(line.bench_target == "machine");
  CHECK(line.config.threads == 3);
  CHECK(line.config.adamw_params == 10'000'000);
  CHECK(line.config.machine_seconds == 0.5);
  CHECK(line.config.rates == "rates.json");
  CHECK(has(refusal({"bench", "machine", "--steps", "3"}), "ferry bench machine: --steps changes nothing there"));
  CHECK(has(refusal({"bench", "machine", "--model", "tiny"}), "--model changes nothing there"));
  CHECK(has(refusal({"bench", "adamw", "--rates", "rates.json"}), "--rates changes nothing there"));
  CHECK(has(refusal({"bench", "machine", "--machine-seconds", "-1"}), "--machine-seconds"));
}

TEST_CASE("bench takes a config file after its target") {
  const TempFolder folder;
  const std::string file = folder.write("run.toml", kFile).string();
  for (const Args& args : {Args{"bench", "step", file}, Args{"bench", "floor", "--config", file}}) {
    const CommandLine line = parse_command_line(args);
    CHECK(line.bench_target == args[1]);
    CHECK(line.config_source == file);
    CHECK(line.config.model == "tiny");
    CHECK(line.config.seq_len == 2048);
    CHECK(line.config.steps == 0);  // those of a training run
  }
  CHECK(parse_command_line({"bench", "step", file, "--steps", "9"}).config.steps == 9);
  CHECK(refusal({"bench", "step", file, "more"}) ==
        "config: ferry bench: 'more' is one argument too many (usage: ferry bench TARGET [CONFIG] [flags])");
}

TEST_CASE("bench without a file measures the built-in config, or the model of the line with defaults") {
  CHECK(parse_command_line({"bench", "step"}).config.model == "tiny");
  CHECK(parse_command_line({"bench", "step"}).config.seq_len == 128);
  const CommandLine line = parse_command_line({"bench", "floor", "--model", "llama-3.2-1b"});
  CHECK(line.config_source.empty());
  CHECK(line.config.model == "llama-3.2-1b");
  CHECK(line.config.seq_len == 2048);
  CHECK(has(refusal({"bench", "step", "--seq-len", "100000", "--batch-size", "1000000"}), "lower one of them"));
}

TEST_CASE("a missing bench target lists the targets") {
  CHECK(refusal({"bench"}) == "config: ferry bench: no target (targets: ops, step, floor, adamw, machine)");
}

TEST_CASE("an unknown bench target is refused with the nearest one") {
  CHECK(refusal({"bench", "op"}) ==
        "config: ferry bench: unknown target 'op': did you mean 'ops'? (targets: ops, step, floor, adamw, machine)");
}

TEST_CASE("help and version are texts") {
  for (const Args& args : {Args{}, Args{"--help"}, Args{"-h"}, Args{"--help-all"}}) {
    CHECK(has(parse_command_line(args).text, "Usage: ferry COMMAND"));
  }
  CHECK(parse_command_line({"--version"}).text.rfind("ferry ", 0) == 0);
  CHECK(has(parse_command_line({"train", "--help"}).text, "--batch-size"));
  CHECK_FALSE(has(parse_command_line({"train", "-h"}).text, "--weight-slots"));
  CHECK(has(parse_command_line({"train", "--help-all"}).text, "--weight-slots"));
}

TEST_CASE("help is given even when the rest of the line is wrong") {
  CHECK(has(parse_command_line({"train", "--lrr", "3", "--help"}).text, "Usage: ferry train"));
}

TEST_CASE("an unknown command is refused with the nearest one") {
  CHECK(refusal({"trian"}) ==
        "config: unknown command 'trian': did you mean 'train'? (commands: train, generate, eval, export, inspect, "
        "plan, bench)");
}

TEST_CASE("an unknown flag is refused with the nearest one") {
  CHECK(refusal({"train", "--learnrate", "3"}) ==
        "config: ferry train: unknown flag '--learnrate' (`ferry train --help-all` lists all)");
  CHECK(refusal({"train", "--batchsize=3"}) ==
        "config: ferry train: unknown flag '--batchsize': did you mean '--batch-size'? (`ferry train --help-all` lists "
        "all)");
  CHECK(refusal({"train", "-x"}) == "config: ferry train: unknown flag '-x' (`ferry train --help-all` lists all)");
}

TEST_CASE("a flag of another command is unknown") {
  CHECK(has(refusal({"bench", "ops", "--train-data", "a"}), "unknown flag '--train-data'"));
  CHECK(has(refusal({"generate", "--steps", "3"}), "unknown flag '--steps'"));
}

TEST_CASE("a bad value names its flag and what is allowed") {
  CHECK(refusal({"train", "--lr", "fast"}) == "config: --lr = \"fast\": expected a number > 0 and <= 10");
  CHECK(refusal({"train", "--lr", "nan"}) == "config: --lr = nan: expected a number > 0 and <= 10");
  CHECK(refusal({"train", "--seed", "-1"}) == "config: --seed = -1: expected an integer >= 0");
  CHECK(refusal({"train", "--quiet=maybe"}) == "config: --quiet = \"maybe\": expected true or false");
}

TEST_CASE("a flag without its value is refused") {
  CHECK(refusal({"train", "--lr"}) == "config: ferry train: --lr needs a value");
  CHECK(refusal({"train", "--output", "--quiet"}) ==
        "config: --output = \"--quiet\": expected a path (UTF-8, not starting with -)");
}

TEST_CASE("a flag given twice is refused") {
  CHECK(refusal({"train", "--lr", "1", "--lr", "2"}) == "config: --lr is given 2 times: give it once");
  CHECK(refusal({"train", "--quiet", "--no-quiet"}) == "config: --quiet is given 2 times: give it once");
}

TEST_CASE("two config files are refused") {
  CHECK(refusal({"train", "a", "--config", "b"}) == "config: ferry train: two config files, 'b' and 'a': give one");
}

TEST_CASE("an argument too many is refused") {
  CHECK(refusal({"train", "a", "b"}) ==
        "config: ferry train: 'b' is one argument too many (usage: ferry train [CONFIG] [flags])");
}

TEST_CASE("a missing config file is named") { CHECK(refusal({"train", "no.toml"}) == "io: no.toml: no such file"); }

TEST_CASE("what flags and file make together is checked") {
  CHECK(has(refusal({"train", "--seq-len", "100000", "--batch-size", "1000000"}), "lower one of them"));
}

}  // namespace
}  // namespace ferry
