// SPDX-License-Identifier: Apache-2.0
// The ferry program end to end: a tiny training run, its files, Ctrl-C, and what it says when something is wrong.
#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <string>

#include "catch.h"
#include "cli/run_ferry.h"
#include "cli/workplace.h"
#include "core/simd.h"
#include "optim/adamw.h"

using namespace ferry::test;

namespace {

double number_after(const std::string& text, const std::string& label) {
  return std::stod(text.substr(text.find(label) + label.size()));
}

/// Starts ferry where no file may become larger than `bytes`, as under `ulimit -f`.
FerryProcess limited(const Workplace& place, const std::vector<std::string>& args, rlim_t bytes) {
  rlimit old{};
  getrlimit(RLIMIT_FSIZE, &old);
  const rlimit limit{.rlim_cur = bytes, .rlim_max = old.rlim_max};
  setrlimit(RLIMIT_FSIZE, &limit);
  FerryProcess process(place, args);
  setrlimit(RLIMIT_FSIZE, &old);
  return process;
}

}  // namespace

TEST_CASE("train learns, reports and leaves weights, metrics, curve and config") {
  const Workplace place;
  const Outcome outcome = run_ferry(place, {"train", "tiny.toml"});
  INFO(outcome.err);
  REQUIRE(outcome.exit_code == 0);
  CHECK(outcome.err.empty());
  for (const char* file : {"out/config.toml", "out/metrics.jsonl", "out/loss.svg", "out/model/config.json",
                           "out/model/model.safetensors"}) {
    CHECK(place.has(file));
  }
  CHECK(number_after(outcome.out, "step 60/60  loss ") < number_after(outcome.out, "step  1/60  loss ") - 2);
  for (const char* part : {"parameters in f32", "train.txt: 4,800 tokens", "cpu", "weights", "in all",
                           "60 steps of 4 x 16", "validation loss", "bits per byte", "tokens/s", "sample: "}) {
    INFO(part);
    CHECK(contains(outcome.out, part));
  }
  CHECK(contains(read_file(place.path() / "out/metrics.jsonl"), "\"status\":\"finished\""));
}

TEST_CASE("train says what AdamW keeps, how it rounds and with which instructions it runs") {
  const Workplace place;
  const std::string path = std::string(ferry::to_string(ferry::adamw_path(ferry::simd_level()))) + " on ";
  const auto start_of = [&](std::vector<std::string> flags) {
    std::vector<std::string> args = {"train", "tiny.toml", "--steps", "1", "--sample-tokens", "0"};
    args.insert(args.end(), flags.begin(), flags.end());
    const Outcome outcome = run_ferry(place, args);
    INFO(outcome.err);
    CHECK(outcome.exit_code == 0);
    return outcome.out;
  };
  CHECK(contains(start_of({"--output", "exact"}), "AdamW, f32 state, " + path));
  CHECK(contains(start_of({"--output", "mixed", "--dtype", "bf16", "--optimizer-state", "mixed"}),
                 "AdamW, mixed state, stochastic rounding, " + path));
  CHECK(contains(
      start_of({"--output", "nearest", "--dtype", "bf16", "--optimizer-state", "bf16", "--rounding", "nearest"}),
      "AdamW, bf16 state, nearest rounding, " + path));
}

TEST_CASE("a trace of steps is written where it is asked for") {
  const Workplace place;
  const Outcome trained =
      run_ferry(place, {"train", "tiny.toml", "--steps", "3", "--sample-tokens", "0", "--trace", "trace.json"});
  INFO(trained.err);
  REQUIRE(trained.exit_code == 0);
  const std::string trace = read_file(place.path() / "trace.json");
  for (const char* part : {"\"traceEvents\"", "\"forward layer 1\"", "\"AdamW layer 0\"", "\"launch step\""}) {
    INFO(part);
    CHECK(contains(trace, part));
  }
  const Outcome measured = run_ferry(place, {"bench", "step", "tiny.toml", "--steps", "1", "--trace", "bench.json"});
  REQUIRE(measured.exit_code == 0);
  CHECK(contains(measured.out, "stalls "));
  CHECK(contains(read_file(place.path() / "bench.json"), "\"backward layer 1\""));
  check_refused(place, {"bench", "step", "tiny.toml", "--steps", "1", "--trace", "absent/trace.json"}, 3, "absent");
}

TEST_CASE("micro-batches, cuts and heads train on the same tokens to the same loss") {
  const Workplace place;
  const auto end_of_run = [&](std::vector<std::string> flags) {
    std::vector<std::string> args = {"train", "tiny.toml", "--steps", "3", "--sample-tokens", "0", "--output"};
    args.push_back(flags.empty() ? "out/default" : "out/" + flags.back());
    args.insert(args.end(), flags.begin(), flags.end());
    const Outcome outcome = run_ferry(place, args);
    INFO(outcome.err);
    CHECK(outcome.exit_code == 0);
    CHECK(contains(outcome.out, "3 steps of 4 x 16 tokens (192 tokens"));
    const std::size_t loss = outcome.out.find("validation loss");
    return loss == std::string::npos ? "none" : outcome.out.substr(loss, outcome.out.find(',', loss) - loss);
  };
  const std::string reference = end_of_run({});
  CHECK(contains(reference, "validation loss "));
  CHECK(end_of_run({"--batch-size", "1", "--accumulate", "4"}) == reference);
  CHECK(end_of_run({"--mlp-chunk", "tokens:24", "--head", "tokens:10"}) == reference);
  CHECK(end_of_run({"--mlp-chunk", "features:8", "--recompute", "keep:1"}) == reference);
  CHECK(end_of_run({"--head", "logits", "--recompute", "full"}) == reference);
  check_refused(place, {"train", "tiny.toml", "--output", "refused", "--recompute", "keep:3"}, 2,
                "recompute = keep:3: the model has 2 layers");
}

TEST_CASE("budgets train to the same loss, and one that is too small is refused before anything is written") {
  const Workplace place;
  const auto loss = [&](const std::string& budget) {
    const Outcome outcome = run_ferry(place, {"train", "tiny.toml", "--steps", "3", "--sample-tokens", "0", "--output",
                                              "out/" + budget, "--gpu-memory", budget});
    INFO(outcome.err);
    CHECK(outcome.exit_code == 0);
    return number_after(outcome.out, "step 3/3  loss ");
  };
  const double reference = loss("auto");
  CHECK(loss("min") == reference);
  CHECK(loss("1MB") == reference);
  check_refused(place, {"train", "tiny.toml", "--output", "small", "--gpu-memory", "1kB"}, 4,
                "gpu_memory = 1kB: the smallest plan of 4 x 16 tokens takes ");
  check_refused(place, {"train", "tiny.toml", "--output", "small", "--host-memory", "1kB"}, 4,
                "host_memory = 1kB, the plan needs ");
  CHECK_FALSE(place.has("small"));
}

TEST_CASE("clipping and frozen parameters are options of train") {
  const Workplace place;
  const Outcome outcome =
      run_ferry(place, {"train", "tiny.toml", "--steps", "3", "--sample-tokens", "0", "--grad-clip", "0.1", "--freeze",
                        "*norm*", "--freeze", "model.layers.0.*", "--offload", "layers"});
  INFO(outcome.err);
  CHECK(outcome.exit_code == 0);
  check_refused(place, {"train", "tiny.toml", "--output", "frozen", "--freeze", "model.layer.0.*"}, 2,
                "freeze: no parameter matches 'model.layer.0.*'");
  check_refused(place, {"train", "tiny.toml", "--output", "frozen", "--freeze", "model.norm.*", "--freeze", "*weight"},
                2, R"(freeze = ["model.norm.*", "*weight"] matches all 20 parameters, nothing is left to train)");
  CHECK_FALSE(place.has("frozen"));
}

TEST_CASE("the saved config and weights start another run") {
  const Workplace place;
  REQUIRE(run_ferry(place, {"train", "tiny.toml"}).exit_code == 0);
  const Outcome again =
      run_ferry(place, {"train", "out/config.toml", "--init-from", "out/model", "--output", "more", "--steps", "3"});
  INFO(again.err);
  REQUIRE(again.exit_code == 0);
  CHECK(number_after(again.out, "step 1/3  loss ") < 3);
}

TEST_CASE("generate continues a text from a run's folder or its model folder") {
  const Workplace place;
  REQUIRE(run_ferry(place, {"train", "tiny.toml"}).exit_code == 0);
  const auto generated = [&](const std::string& folder, const std::vector<std::string>& flags) {
    std::vector<std::string> args = {"generate", folder, "--prompt", "the cat", "--max-tokens", "20", "--dtype", "f32"};
    args.insert(args.end(), flags.begin(), flags.end());
    const Outcome outcome = run_ferry(place, args);
    CHECK(outcome.exit_code == 0);
    CHECK(outcome.err.empty());
    return outcome.out;
  };
  const std::string greedy = generated("out", {"--temperature", "0"});
  CHECK(greedy.starts_with("the cat"));
  CHECK(greedy.size() == 7 + 20 + 1);
  CHECK(generated("out/model", {"--temperature", "0"}) == greedy);
  CHECK(generated("out", {"--temperature", "0", "--gpu-memory", "min"}) == greedy);
  CHECK(generated("out", {"--temperature", "2", "--top-k", "1"}) == greedy);
  CHECK(generated("out", {"--temperature", "1", "--top-p", "1e-6"}) == greedy);
}

TEST_CASE("generate draws the same text from the same seed, beyond the model's context too") {
  const Workplace place;
  REQUIRE(run_ferry(place, {"train", "tiny.toml"}).exit_code == 0);
  const auto text = [&](const std::string& seed) {
    return run_ferry(place, {"generate", "out", "--prompt-ids", "116,104,101", "--max-tokens", "60", "--seed", seed,
                             "--temperature", "1.5", "--top-k", "20", "--top-p", "0.95"})
        .out;
  };
  const std::string first = text("1");
  CHECK(first.starts_with("the"));
  CHECK(first.size() == 3 + 60 + 1);
  CHECK(text("1") == first);
  CHECK(text("2") != first);
  const Outcome cut = run_ferry(place, {"generate", "out", "--prompt", std::string(40, 'a'), "--max-tokens", "3"});
  CHECK(cut.exit_code == 0);
  CHECK(contains(cut.err, "the prompt has 40 tokens, the model's context 16: it sees the last 8 of them"));
}

TEST_CASE("Ctrl-C and SIGTERM end the step, save a checkpoint and exit with 128 + signal") {
  const int number = GENERATE(SIGINT, SIGTERM);
  const Workplace place;
  FerryProcess process(place, {"train", "tiny.toml", "--steps", "100000000"});
  REQUIRE(process.wait_for("step        10/"));
  process.send(number);
  const Outcome outcome = process.wait();
  CHECK(outcome.exit_code == 128 + number);
  CHECK(
      outcome.err.starts_with("\nfinishing the step, then saving a checkpoint; press Ctrl-C again to quit at once\n"));
  CHECK(outcome.err.find("Ctrl-C") == outcome.err.rfind("Ctrl-C"));
  CHECK(contains(outcome.err, number == SIGINT ? "SIGINT: stopped after step" : "SIGTERM: stopped after step"));
  CHECK(contains(outcome.err, "; to go on: ferry train out/config.toml --resume auto"));
  CHECK_FALSE(place.has("out/model"));
  CHECK(contains(read_file(place.path() / "out/metrics.jsonl"), "\"status\":\"interrupted\""));
  CHECK(run_ferry(place, {"generate", "out", "--max-tokens", "5"}).exit_code == 0);
}

TEST_CASE("quiet prints nothing, log_file gets what was said") {
  const Workplace place;
  const Outcome outcome =
      run_ferry(place, {"train", "tiny.toml", "--quiet", "--log-file", "out/run.log", "--steps", "2"});
  CHECK(outcome.exit_code == 0);
  CHECK(outcome.out.empty());
  CHECK(outcome.err.empty());
  CHECK(contains(read_file(place.path() / "out/run.log"), "step 2/2  loss "));
}

TEST_CASE("a run that diverges says so, fails and saves nothing") {
  const Workplace place;
  REQUIRE(run_ferry(place, {"train", "tiny.toml", "--steps", "1", "--output", "first"}).exit_code == 0);
  std::string weights = read_file(place.path() / "first/model/model.safetensors");
  weights.replace(weights.size() - 64, 64, std::string(64, '\x7f'));  // the final norm: finite, but far too large
  place.write("first/model/model.safetensors", weights);
  const Outcome outcome = run_ferry(place, {"train", "tiny.toml", "--init-from", "first/model"});
  CHECK(outcome.exit_code == 5);
  CHECK(contains(outcome.err, "error: the loss of step 1 is "));
  CHECK_FALSE(place.has("out/model"));
  CHECK(contains(read_file(place.path() / "out/metrics.jsonl"), "\"status\":\"failed\""));
}

TEST_CASE("damaged training data end the run after a checkpoint is saved") {
  const Workplace place;
  std::string ids;
  for (int i = 0; i < 680; ++i) ids += std::string("a\0", 2);
  ids.back() = '\7';
  std::string header("FERRYTOK\1\0\0\0\2\0\0\0\0\1\0\0\0\0\0\0\xa8\2\0\0\0\0\0\0", 32);
  place.write("train.bin", header + ids);
  const Outcome outcome = run_ferry(place, {"train", "tiny.toml", "--train-data", "train.bin"});
  INFO(outcome.err);
  CHECK(outcome.exit_code == 3);
  CHECK(contains(outcome.err, "is outside of the model's vocabulary"));
  CHECK(contains(outcome.err, "an error: stopped after step 9; to go on: ferry train out/config.toml --resume auto"));
  CHECK(place.has("out/checkpoints/step-00000009/model.safetensors"));
  CHECK(contains(read_file(place.path() / "out/metrics.jsonl"), "\"status\":\"failed\",\"step\""));
}

TEST_CASE("an output folder with weights or with foreign files is refused, an unfinished run's is reused") {
  const Workplace place;
  std::filesystem::create_directories(place.path() / "out");
  place.write("out/metrics.jsonl", "");
  place.write("out/config.toml", "");
  REQUIRE(run_ferry(place, {"train", "tiny.toml", "--steps", "1"}).exit_code == 0);
  check_refused(place, {"train", "tiny.toml"}, 3, "output 'out' holds the weights of an earlier run");
  check_refused(place, {"train", "tiny.toml", "--output", "."}, 3, "holds a file that is not of a ferry run");
  check_refused(place, {"train", "tiny.toml", "--output", "train.txt"}, 3,
                "output 'train.txt' is a file: give a folder");
}

TEST_CASE("missing data say where they were looked for") {
  const Workplace place;
  check_refused(place, {"train", "tiny.toml", "--train-data", "absent.txt"}, 3,
                "data file 'absent.txt' does not exist");
  check_refused(place, {"train"}, 3, "run ferry in the folder of its source code");
  CHECK_FALSE(place.has("out"));
}

TEST_CASE("data whose masks leave nothing to train on or to evaluate are refused") {
  const Workplace place;
  const auto mask = [&](const std::string& file, char value) {
    place.write(file + ".mask", std::string(std::filesystem::file_size(place.path() / file), value));
  };
  mask("val.txt", '\0');
  check_refused(
      place, {"train", "tiny.toml"}, 2,
      "val_data holds no valid target: every token that its 29 sequences predict is masked (0) in 'val.txt.mask'");
  mask("train.txt", '\0');
  check_refused(
      place, {"train", "tiny.toml"}, 2,
      "train_data holds no valid target: every token that its 282 sequences predict is masked (0) in 'train.txt.mask'");
  CHECK_FALSE(place.has("out"));
  place.write("more.txt", std::string(500, 'a'));  // one file with targets is enough
  const Outcome other =
      run_ferry(place, {"train", "tiny.toml", "--steps", "1", "--sample-tokens", "0", "--train-data", "train.txt",
                        "--train-data", "more.txt", "--val-data", "val.txt", "--val-data", "more.txt"});
  INFO(other.err);
  CHECK(other.exit_code == 0);
  check_refused(place, {"eval", "out", "--val-data", "val.txt"}, 2, "val_data holds no valid target: every token");
}

TEST_CASE("what cannot be trained or generated is refused before anything is written") {
  const Workplace place;
  check_refused(place, {"train", "tiny.toml", "--seq-len", "64"}, 2, "its max_position_embeddings is 32");
  check_refused(place, {"train", "tiny.toml", "--warmup-steps", "100"}, 2, "warmup_steps is 100");
  check_refused(place, {"train", "tiny.toml", "--init-from", "absent"}, 3, "absent");
  check_refused(place, {"train", "tiny.toml", "--no-such-flag"}, 2, "--no-such-flag");
  check_refused(place, {"train", "absent.toml"}, 3, "absent.toml");
  check_refused(place, {"trian"}, 2, "train");
  check_refused(place, {"generate"}, 2, "no model to generate from");
  check_refused(place, {"generate", "absent"}, 3, "'absent' holds no model");
  check_refused(place, {"bench"}, 2, "no target");
  CHECK_FALSE(place.has("out"));
}

TEST_CASE("generate answers in ids where there is no tokenizer, and ends where a text ends") {
  const Workplace place;
  std::string config = kModel;
  config.replace(config.find("256"), 3, "512");
  place.write("model.json", config);
  REQUIRE(run_ferry(place, {"train", "tiny.toml", "--steps", "2", "--data-format", "bytes"}).exit_code == 0);
  check_refused(place, {"generate", "out"}, 2, "has no tokenizer.json for its vocabulary of 512");
  check_refused(place, {"generate", "out", "--prompt-ids", "1,x"}, 2, "prompt_ids: 'x' is no token: expected");
  check_refused(place, {"generate", "out", "--prompt-ids", "1,512"}, 2,
                "'512' is no token: expected numbers from 0 to 511");
  check_refused(place, {"generate", "out", "--prompt-ids", "1", "--prompt", "a"}, 2, "expected one of them");
  const std::vector<std::string> args = {"generate",     "out", "--prompt-ids",  "1,300",
                                         "--max-tokens", "6",   "--temperature", "0"};
  const std::string ids = run_ferry(place, args).out;
  CHECK(ids.starts_with("1,300,"));
  CHECK(std::ranges::count(ids, ',') == 7);
  CHECK(ids.ends_with("\n"));
  const std::string third = ids.substr(6, ids.find(',', 6) - 6);
  place.write("out/model/generation_config.json", "{\"eos_token_id\": [511, " + third + "]}");
  CHECK(run_ferry(place, args).out == "1,300\n");
}

TEST_CASE("a file that outgrows the limit of the system is an error, not a crash") {
  const Workplace place;
  const Outcome outcome = limited(place, {"train", "tiny.toml"}, 16'000).wait();
  CHECK(outcome.exit_code == 3);
  CHECK(contains(outcome.err, "model.safetensors: File too large"));
  CHECK_FALSE(place.has("out/model"));
}

TEST_CASE("text that stdout does not take is an error") {
  const Workplace place;
  for (const std::vector<std::string>& args : {std::vector<std::string>{"plan", "tiny.toml"}, {"--help"}}) {
    const Outcome outcome = limited(place, args, 100).wait();
    CHECK(outcome.exit_code == 3);
    CHECK(outcome.err == "error: writing to stdout failed: is the disk full?\n");
  }
}

TEST_CASE("help and version go to stdout") {
  const Workplace place;
  CHECK(run_ferry(place, {"--help"}).exit_code == 0);
  CHECK(contains(run_ferry(place, {"train", "--help"}).out, "--steps"));
  CHECK(run_ferry(place, {"--version"}).out.starts_with("ferry "));
}
