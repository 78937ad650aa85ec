// SPDX-License-Identifier: Apache-2.0
// The ferry program stopped, killed and resumed: the same bits as a run that was never stopped.
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <thread>

#include "catch.h"
#include "cli/run_ferry.h"
#include "cli/workplace.h"
#include "io/checksum.h"

using namespace ferry::test;

namespace {

namespace fs = std::filesystem;

std::vector<std::string> train(const std::string& output, std::vector<std::string> flags = {}) {
  std::vector<std::string> args{"train", "tiny.toml", "--output", output, "--sample-tokens", "0"};
  args.insert(args.end(), flags.begin(), flags.end());
  return args;
}

/// Lines of the log without times and speeds, and without saves that no plan asked for.
std::vector<std::string> log_of(const Workplace& place, const std::string& output) {
  std::vector<std::string> lines;
  std::istringstream text(read_file(place.path() / output / "metrics.jsonl"));
  for (std::string line; std::getline(text, line);) {
    auto json = nlohmann::ordered_json::parse(line);
    if (json["kind"] == "save") continue;
    std::vector<std::string> times;
    for (const auto& item : json.items()) {
      if (item.key().ends_with("_s") || item.key().ends_with("_ms")) times.push_back(item.key());
    }
    for (const std::string& key : times) json.erase(key);
    json.erase("h2d_bytes");
    lines.push_back(json.dump());
  }
  return lines;
}

void check_same_model(const Workplace& place, const std::string& got, const std::string& wanted) {
  for (const char* file : {"model/model.safetensors", "model/config.json"}) {
    CHECK(read_file(place.path() / got / file) == read_file(place.path() / wanted / file));
  }
}

void check_same_run(const Workplace& place, const std::string& got, const std::string& wanted) {
  check_same_model(place, got, wanted);
  CHECK(log_of(place, got) == log_of(place, wanted));
}

Outcome run(const Workplace& place, const std::vector<std::string>& args) {
  Outcome outcome = run_ferry(place, args);
  INFO(outcome.err);
  CHECK(outcome.exit_code == 0);
  return outcome;
}

}  // namespace

TEST_CASE("a run that a signal stops is resumed to the bits of a straight run") {
  const int number = GENERATE(SIGINT, SIGTERM);
  const Workplace place;
  const std::vector<std::string> length = {"--steps", "600", "--log-every", "50"};
  run(place, train("straight", length));
  FerryProcess process(place, train("out", length));
  REQUIRE(process.wait_for("step 100/"));
  process.send(number);
  const Outcome stopped = process.wait();
  CHECK(stopped.exit_code == 128 + number);
  REQUIRE(contains(stopped.err, "; to go on: ferry train out/config.toml --resume auto"));
  CHECK_FALSE(place.has("out/model"));
  const Outcome resumed = run(place, {"train", "out/config.toml", "--resume", "auto"});
  CHECK(contains(resumed.out, "resume    after step "));
  check_same_run(place, "out", "straight");
}

TEST_CASE("a second signal quits at once and leaves the checkpoint before") {
  const Workplace place;
  FerryProcess process(place, train("out", {"--steps", "100000000", "--save-every", "20", "--log-every", "1"}));
  REQUIRE(process.wait_for("saved out/checkpoints/step-00000020"));
  process.send(SIGINT);
  process.send(SIGINT);
  CHECK(process.wait().exit_code == 128 + SIGINT);
  CHECK(contains(run(place, {"train", "out/config.toml", "--resume", "auto", "--steps", "45"}).out, "step 45: saved"));
}

TEST_CASE("a run that is killed again and again is resumed to the bits of a straight run") {
  const Workplace place;
  const std::vector<std::string> flags = {"--steps", "400", "--save-every", "3", "--resume", "auto"};
  run(place, train("straight", {"--steps", "400"}));
  std::mt19937 random(5);
  for (int i = 0; i < 20; ++i) {
    FerryProcess process(place, train("out", flags));
    process.wait_for("step ");
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 40'000));
    process.send(SIGKILL);
    process.wait();
  }
  const Outcome last = run(place, train("out", {"--steps", "400", "--save-every", "100", "--resume", "auto"}));
  CHECK(last.err.empty());
  check_same_run(place, "out", "straight");
  CHECK(std::distance(fs::directory_iterator(place.path() / "out/checkpoints"), {}) == 2);
}

TEST_CASE("resume = auto starts anew where nothing is, and a finished run stays finished") {
  const Workplace place;
  const auto args = train("out", {"--steps", "8", "--save-every", "4", "--resume", "auto"});
  CHECK(contains(run(place, args).out, "no checkpoint in out: the run starts anew"));
  const std::string weights = read_file(place.path() / "out/model/model.safetensors");
  const std::string log = read_file(place.path() / "out/metrics.jsonl");
  CHECK(contains(log, "\"kind\":\"save\",\"step\":4,\"path\":\"checkpoints/step-00000004\""));
  CHECK(contains(run(place, args).out, "resume    after step 8, from out/checkpoints/step-00000008"));
  CHECK(read_file(place.path() / "out/model/model.safetensors") == weights);
}

TEST_CASE("resume = auto does not start a moved run anew") {
  const Workplace place;
  run(place, train("out", {"--steps", "4", "--save-every", "4"}));
  fs::rename(place.path() / "out", place.path() / "moved");
  check_refused(place, {"train", "moved/config.toml", "--resume", "auto"}, 3, "give --output 'moved'");
  CHECK_FALSE(place.has("out"));
  const Outcome resumed = run(place, {"train", "moved/config.toml", "--resume", "auto", "--output", "moved"});
  CHECK(contains(resumed.out, "resume    after step 4"));
}

TEST_CASE("a damaged newest checkpoint is passed over by auto and refused by its path") {
  const Workplace place;
  run(place, train("straight", {"--steps", "12"}));
  run(place, train("out", {"--steps", "12", "--save-every", "4"}));
  const std::string newest = "out/checkpoints/step-00000012";
  fs::resize_file(place.path() / newest / "optimizer.safetensors", 999);
  for (const std::string& path : {std::string("out"), newest}) {
    check_refused(place, train("other", {"--steps", "12", "--resume", path}), 3,
                  newest + "/optimizer.safetensors is damaged: it has 999 bytes");
  }
  const Outcome outcome = run(place, train("out", {"--steps", "12", "--save-every", "4", "--resume", "auto"}));
  CHECK(contains(outcome.err, "warning: " + newest + "/optimizer.safetensors is damaged: it has 999 bytes, "));
  CHECK(contains(outcome.out, "resume    after step 8, from out/checkpoints/step-00000008"));
  check_same_run(place, "out", "straight");
  for (const char* step : {"step-00000008", "step-00000012"}) {
    fs::resize_file(place.path() / "out/checkpoints" / step / "state.json", 3);
  }
  const Outcome none = run_ferry(place, train("out", {"--steps", "12", "--resume", "auto"}));
  CHECK(none.exit_code == 3);
  CHECK(contains(none.err, "error: none of the 2 checkpoints in 'out/checkpoints' is whole"));
}

TEST_CASE("a checkpoint of another folder starts a run in a new one") {
  const Workplace place;
  run(place, train("straight", {"--steps", "12"}));
  run(place, train("first", {"--steps", "12", "--save-every", "5"}));
  run(place, train("second", {"--steps", "12", "--resume", "first/checkpoints/step-00000010"}));
  check_same_run(place, "second", "straight");
  check_refused(place, train("straight", {"--steps", "12", "--resume", "first"}), 3,
                "output 'straight' holds the weights of an earlier run");
  check_refused(place, train("third", {"--steps", "12", "--resume", "tiny.toml"}), 3,
                "resume: 'tiny.toml' holds no checkpoint");
  CHECK_FALSE(place.has("third"));
}

TEST_CASE("what would change a bit of a resumed run is refused by its key with both values") {
  const Workplace place;
  run(place, train("out", {"--steps", "6", "--save-every", "4"}));
  const auto refused = [&](std::vector<std::string> flags, const std::string& message) {
    std::vector<std::string> args = train("out", {"--resume", "auto"});
    args.insert(args.end(), flags.begin(), flags.end());
    if (std::ranges::count(args, "--steps") == 0) args.insert(args.end(), {"--steps", "6"});
    check_refused(place, args, 2, message);
  };
  const std::string from = "cannot resume from 'out/checkpoints/step-00000006': it was trained with ";
  refused({"--lr", "0.02"}, from + "lr = 0.01, this run has 0.02");
  refused({"--seed", "7"}, from + "seed = 2024, this run has 7");
  refused({"--batch-size", "2"}, from + "batch_size = 4, this run has 2");
  refused({"--accumulate", "2"}, from + "accumulate = 1, this run has 2");
  refused({"--order", "shuffled"}, from + "order = \"sequential\", this run has \"shuffled\"");
  refused({"--data-seed", "1"}, from + "data_seed = 0, this run has 1");
  refused({"--dtype", "bf16"}, from + "dtype = \"f32\", this run has \"bf16\"");
  refused({"--grad-clip", "1"}, from + "grad_clip = 0, this run has 1");
  refused({"--freeze", "*norm*"}, from + "freeze = not given, this run has [\"*norm*\"]");
  refused({"--seq-len", "8"}, from + "seq_len = 16, this run has 8");
  refused({"--vocab-chunk", "32"}, from + "vocab_chunk = ");
  refused({"--head", "tokens:8"}, from + "head = \"auto\", this run has \"tokens:8\"");
  refused({"--train-data", "val.txt"}, from + "train_data = [\"train.txt\"], this run has [\"val.txt\"]");
  refused({"--steps", "5"}, "it has 6 steps, this run ends after 5");
  refused({"--model", "tiny"}, "holds another model: its hidden_size is 16");
  place.write("train.txt", read_file(place.path() / "train.txt") + "more");
  refused({}, "its train_data had 4800 tokens in 282 sequences, they have 4804 in 282");
}

TEST_CASE("other data under the same name is refused, the same data in another folder are not") {
  const Workplace place;
  run(place, train("straight", {"--steps", "12"}));
  run(place, train("out", {"--steps", "6", "--save-every", "3"}));
  const auto resume = train("out", {"--steps", "12", "--resume", "auto"});
  const std::string text = read_file(place.path() / "train.txt");
  for (const std::size_t at : {std::size_t{0}, text.size() / 2, text.size() - 1}) {
    std::string other = text;
    other[at] = other[at] == 'a' ? 'e' : 'a';
    place.write("train.txt", other);
    check_refused(place, resume, 2, "'train.txt' holds other data than then: it had 4800 bytes with checksum ");
  }
  place.write("train.txt", text);
  place.write("train.txt.mask", std::string(text.size(), '\1'));
  check_refused(place, resume, 2, "'train.txt' had no mask, it has a mask with checksum ");
  fs::remove(place.path() / "train.txt.mask");
  fs::create_directory(place.path() / "elsewhere");
  fs::rename(place.path() / "train.txt", place.path() / "elsewhere/train.txt");
  std::vector<std::string> moved = resume;
  moved.insert(moved.end(), {"--train-data", "elsewhere/train.txt"});
  run(place, moved);
  check_same_model(place, "out", "straight");
}

TEST_CASE("another mask of the data is refused") {
  const Workplace place;
  std::string mask(read_file(place.path() / "train.txt").size(), '\1');
  place.write("train.txt.mask", mask);
  run(place, train("out", {"--steps", "4", "--save-every", "4"}));
  const auto resume = train("out", {"--steps", "8", "--resume", "auto"});
  mask[100] = '\0';
  place.write("train.txt.mask", mask);
  check_refused(place, resume, 2, "'train.txt' had a mask with checksum ");
  fs::remove(place.path() / "train.txt.mask");
  check_refused(place, resume, 2, ", it has no mask");
}

TEST_CASE("a checkpoint from before there were fingerprints of the data is resumed to the bit") {
  const Workplace place;
  run(place, train("straight", {"--steps", "12"}));
  run(place, train("out", {"--steps", "6", "--save-every", "6"}));
  const fs::path folder = place.path() / "out/checkpoints/step-00000006";
  const std::string before = ferry::digest_of(folder / "state.json").checksum;
  auto state = nlohmann::ordered_json::parse(read_file(folder / "state.json"));
  CHECK(state["data"]["files"].size() == 1);
  state["data"].erase("files");
  std::ofstream(folder / "state.json") << state.dump(1);
  std::string checksums = read_file(folder / "checksums.xxh128");
  checksums.replace(checksums.find(before), before.size(), ferry::digest_of(folder / "state.json").checksum);
  std::ofstream(folder / "checksums.xxh128") << checksums;
  const Outcome resumed = run(place, train("out", {"--steps", "12", "--resume", "auto"}));
  CHECK(resumed.err.empty());
  CHECK(contains(resumed.out, "resume    after step 6"));
  check_same_model(place, "out", "straight");
}

TEST_CASE("what changes no bit of a resumed run may differ") {
  const Workplace place;
  run(place, train("straight", {"--steps", "12", "--log-every", "1"}));
  run(place, train("out", {"--steps", "6", "--save-every", "3", "--log-every", "1"}));
  run(place, train("out", {"--steps",        "12", "--log-every",  "1",        "--resume",    "auto",
                           "--threads",      "2",  "--gpu-memory", "min",      "--offload",   "layers",
                           "--weight-slots", "4",  "--recompute",  "none",     "--keep-last", "1",
                           "--save-every",   "5",  "--backend",    "cpu:sync", "--head",      "logits"}));
  CHECK(read_file(place.path() / "out/model/model.safetensors") ==
        read_file(place.path() / "straight/model/model.safetensors"));
}

TEST_CASE("the order of the head's sums is that of the checkpoint") {
  const Workplace place;
  const auto step = [](const std::string& n, std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--steps", n, "--resume", "auto"});
    return train("out", flags);
  };
  run(place, step("2", {"--accumulate", "2", "--save-every", "2"}));
  check_refused(place, step("4", {"--accumulate", "2", "--head", "tokens:8"}), 2,
                "head = \"auto\", this run has \"tokens:8\"");
  run(place, step("4", {"--accumulate", "2", "--head", "logits"}));
  run(place, step("6", {"--accumulate", "2", "--head", "chunks"}));
  const Workplace other;
  run(other, step("2", {"--head", "tokens:8", "--save-every", "2"}));
  CHECK(contains(one_line(run(other, step("4", {})).out), "logits are made for 8 tokens at a time"));
}

TEST_CASE("a run may grow where the steps behind it would have had the same learning rates") {
  const Workplace place;
  const std::vector<std::string> wsd = {"--schedule", "wsd", "--decay-steps", "4"};
  const auto with = [&](std::vector<std::string> flags, const std::vector<std::string>& more) {
    flags.insert(flags.end(), more.begin(), more.end());
    return flags;
  };
  run(place, train("straight", with({"--steps", "20"}, wsd)));
  run(place, train("out", with({"--steps", "12", "--save-every", "8", "--keep-last", "5"}, wsd)));
  check_refused(place, train("out", with({"--steps", "20", "--resume", "auto"}, wsd)), 2,
                "it was trained for steps = 12, this run has 20, and schedule = \"wsd\" falls over all steps");
  fs::remove_all(place.path() / "out/checkpoints/step-00000012");
  run(place, train("out", with({"--steps", "20", "--resume", "auto"}, wsd)));
  CHECK(read_file(place.path() / "out/model/model.safetensors") ==
        read_file(place.path() / "straight/model/model.safetensors"));
}

TEST_CASE("checkpoints are not overwritten by a new run, and generate reads the newest") {
  const Workplace place;
  run(place, train("out", {"--steps", "6", "--save-every", "3"}));
  fs::remove_all(place.path() / "out/model");
  check_refused(place, train("out", {"--steps", "6"}), 3,
                "output 'out' holds checkpoints of an earlier run: go on with it by --resume auto");
  const std::vector<std::string> flags = {"--max-tokens", "20", "--temperature", "0", "--dtype", "f32"};
  const auto generate = [&](const std::string& folder) {
    std::vector<std::string> args{"generate", folder};
    args.insert(args.end(), flags.begin(), flags.end());
    return run(place, args).out;
  };
  CHECK(generate("out") == generate("out/checkpoints/step-00000006"));
}

TEST_CASE("a run whose checkpoints do not fit on the disk is refused at its start") {
  const Workplace place;
  check_refused(place, train("out", {"--steps", "6", "--save-every", "3", "--keep-last", "1000000"}), 3,
                "lower keep_last, give an output on another disk, or set save_every = 0");
  CHECK_FALSE(place.has("out"));
}
