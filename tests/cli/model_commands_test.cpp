// SPDX-License-Identifier: Apache-2.0
// eval, export, inspect and generate end to end, on a published model.
#include <filesystem>
#include <string>

#include "catch.h"
#include "cli/run_ferry.h"

using namespace ferry::test;

namespace {

const std::string kStories = std::string(FERRY_FIXTURES) + "/stories260k";
constexpr const char* kText =
    "One day, a little girl named Mia went to the park with her mom. She saw a big dog and smiled.";

/// With every run of blanks and line breaks as one space: lines are broken where paths are long.
std::string unbroken(const std::string& text) {
  std::string result;
  for (const char byte : text) {
    const bool blank = byte == ' ' || byte == '\n';
    if (!blank || !result.ends_with(' ')) result.push_back(blank ? ' ' : byte);
  }
  return result;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

void check_output(const ferry::TempFolder& place, const std::vector<std::string>& args,
                  const std::vector<std::string>& parts) {
  const Outcome outcome = run_ferry(place, args);
  INFO(outcome.out << outcome.err);
  CHECK(outcome.exit_code == 0);
  CHECK(outcome.err.empty());
  for (const std::string& part : parts) {
    INFO("missing: " << part);
    CHECK(contains(unbroken(outcome.out), part));
  }
}

void check_refused(const ferry::TempFolder& place, const std::vector<std::string>& args, int code,
                   const std::string& message) {
  const Outcome outcome = run_ferry(place, args);
  INFO(outcome.out << outcome.err);
  CHECK(outcome.exit_code == code);
  CHECK(outcome.err.starts_with("error: "));
  CHECK(contains(outcome.err, message));
}

}  // namespace

TEST_CASE("eval gives the loss that is known of a text, per token and per byte") {
  const ferry::TempFolder place;
  place.write("a.txt", kText);
  check_output(place, {"eval", kStories, "--val-data", "a.txt", "--backend", "cpu"},
               {"in f32", "a.txt: 36 tokens, 1 sequences of 35", "0.7112 nats per token, perplexity 2.036",
                "0.3861 bits per byte", "35 in "});
  check_output(place, {"eval", kStories, "--val-data", "a.txt", "--backend", "cpu", "--json"},
               {R"({"kind":"eval",)", R"("dtype":"f32","seq_len":35,"val_loss":0.71119)", R"("val_bytes":93,)"});
}

TEST_CASE("eval obeys dtype, length, budget and the number of tokens") {
  const ferry::TempFolder place;
  std::string text;
  for (int i = 0; i < 20; ++i) text += std::string(kText) + "\n";
  place.write("a.txt", text);
  check_output(place,
               {"eval", kStories, "--val-data", "a.txt", "--backend", "cpu", "--dtype", "bf16", "--seq-len", "64",
                "--batch-size", "2", "--eval-tokens", "200", "--gpu-memory", "min"},
               {"in bf16", "sequences of 64", "256 in "});
  check_refused(place, {"eval", kStories, "--val-data", "a.txt", "--seq-len", "513"}, 2, "seq_len is 513");
  check_refused(place, {"eval", kStories, "--val-data", "a.txt", "--backend", "cpu", "--gpu-memory", "1kB"}, 4,
                "the smallest plan");
}

TEST_CASE("eval gives the same loss resident and offloaded") {
  const ferry::TempFolder place;
  place.write("a.txt", kText);
  const auto loss = [&](const std::vector<std::string>& flags) {
    std::vector<std::string> args = {"eval", kStories, "--val-data", "a.txt", "--backend", "cpu", "--json"};
    args.insert(args.end(), flags.begin(), flags.end());
    const std::string out = run_ferry(place, args).out;
    return out.substr(0, out.find("\"tokens_per_s\""));
  };
  const std::string offloaded = loss({"--offload", "all"});
  CHECK(contains(offloaded, "\"val_loss\":0.7"));
  CHECK(loss({"--offload", "none"}) == offloaded);
  CHECK(loss({"--gpu-memory", "64MB"}) == offloaded);
}

TEST_CASE("eval refuses what it cannot read as the model's tokens") {
  const ferry::TempFolder place;
  place.write("a.txt", kText);
  place.write("damaged.bin", "FERRYTOK");
  check_refused(place, {"eval", kStories}, 2, "nothing to evaluate on: give --val-data FILE");
  check_refused(place, {"eval", "--val-data", "a.txt"}, 2, "no model to evaluate");
  check_refused(place, {"eval", kStories, "--val-data", "damaged.bin"}, 3, "damaged.bin: truncated");
  check_refused(place, {"eval", kStories, "--val-data", "absent.txt"}, 3, "'absent.txt' does not exist");
  std::filesystem::create_directory(place.path() / "bare");
  for (const char* name : {"config.json", "model.safetensors"}) {
    std::filesystem::copy_file(kStories + "/" + name, place.path() / "bare" / name);
  }
  check_refused(place, {"eval", "bare", "--val-data", "a.txt"}, 2, "'a.txt' is text, and the model has no tokenizer");
  place.write("a.txt.mask", std::string(std::string(kText).size(), '\1'));
  check_refused(place, {"eval", kStories, "--val-data", "a.txt"}, 2, "its mask 'a.txt.mask' is one of bytes");
}

TEST_CASE("export writes a model that eval reads, and says what it wrote") {
  const ferry::TempFolder place;
  place.write("a.txt", kText);
  check_output(place, {"export", kStories, "out"},
               {"260,032 parameters in f32", "1016 KiB in f32, model.safetensors", "copied generation_config.json",
                "target out, a Hugging Face folder"});
  check_output(place, {"eval", "out", "--val-data", "a.txt", "--backend", "cpu"}, {"0.7112 nats per token"});
  check_output(place, {"export", kStories, "out", "--dtype", "bf16"}, {"508 KiB in bf16"});
  check_output(place, {"inspect", "out"}, {"508 KiB in BF16", "writer = ferry export", "model.layers.0-4, each"});
  check_refused(place, {"export", kStories}, 2, "usage: ferry export SOURCE TARGET");
  check_refused(place, {"export", "a.txt", "b"}, 3, "'a.txt' holds no model");
  check_refused(place, {"export", kStories, "."}, 2, "is not empty and not an earlier export");
}

TEST_CASE("inspect shows models, files, tokens and configs") {
  const ferry::TempFolder place;
  place.write("a.txt", kText);
  place.write("run.toml", "[optimizer]\nlr = 1e-2\n[run]\nsteps = 5\n");
  check_output(place, {"inspect", kStories},
               {"Llama of 260,032 parameters: 5 layers of width 64", "ids below 512, BOS 1, EOS 2", "format = pt",
                "47 tensors, 260,032 elements: 1016 KiB"});
  check_output(place, {"inspect", kStories + "/model.safetensors", "--all"}, {"model.layers.4.mlp.up_proj.weight"});
  check_output(place, {"inspect", kStories + "/config.json"}, {"positions 512, rope theta 10000"});
  check_output(place, {"inspect", "a.txt"}, {"tokens 93, vocabulary 256", "first 79 110 101 32"});
  check_output(place, {"inspect", "run.toml"}, {"optimizer lr = 0.01", "run steps = 5"});
}

TEST_CASE("a run that starts from a model takes its shape and keeps its tokenizer") {
  const ferry::TempFolder place;
  place.write("a.txt", std::string(kText) + kText);
  place.write("run.toml", "[model]\ninit_from = \"" + kStories +
                              "\"\n[data]\ntrain_data = [\"a.txt\"]\nseq_len = 16\n" +
                              "batch_size = 2\n[run]\nsteps = 1\noutput = \"run\"\nbackend = \"cpu\"\n");
  check_refused(place, {"train", "run.toml"}, 3, "a.txt would be read as bytes");
  check_output(place, {"train", "run.toml", "--data-format", "bytes"},
               {"260,032 parameters in bf16: 5 layers of width 64", "weights from"});
  check_output(place, {"inspect", "run"}, {"vocabulary 512", "tokenizer tokenizer.json"});
  check_output(place, {"eval", "run", "--val-data", "a.txt", "--backend", "cpu"}, {"bits per byte"});
}

TEST_CASE("init_from on the line stands for the defaults of all other keys") {
  const ferry::TempFolder place;
  place.write("ids.bin", std::string(200, '\1'));  // 257 as u16
  check_output(place,
               {"train", "--init-from", kStories, "--train-data", "ids.bin", "--data-format", "u16", "--seq-len", "16",
                "--batch-size", "2", "--steps", "2", "--output", "tuned", "--backend", "cpu"},
               {"260,032 parameters in bf16: 5 layers of width 64", "weights from", "ids.bin: 100 tokens"});
  CHECK(contains(read_file(place.path() / "tuned/config.toml"), "schedule = \"constant\""));
}

TEST_CASE("a checkpoint is shown, compared with its checksums, and exported with its exact f32 weights") {
  const ferry::TempFolder place;
  for (int i = 0; i < 6; ++i) place.write("a.txt", read_file(place.path() / "a.txt") + kText);
  const Outcome trained =
      run_ferry(place, {"train", "--model", "tiny", "--train-data", "a.txt", "--seq-len",       "32", "--batch-size",
                        "2",     "--steps", "3",    "--save-every", "2",     "--sample-tokens", "0",  "--backend",
                        "cpu",   "--dtype", "bf16", "--output",     "run"});
  INFO(trained.err);
  REQUIRE(trained.exit_code == 0);
  const std::string checkpoint = "run/checkpoints/step-00000002";
  check_output(place, {"inspect", "run"}, {"run checkpoints step-00000002, step-00000003", "folder run/model"});
  check_output(place, {"inspect", checkpoint, "--checksums"},
               {"state step 2, 0 of them skipped; 128 tokens trained", "next sequence 4 of", "optimizer.safetensors",
                "mlp.up_proj.weight.weight_low", "checked every byte of the checkpoint is as it was saved"});
  check_output(place, {"export", checkpoint, "exact", "--dtype", "f32"}, {"in f32, model.safetensors: the exact f32"});
  check_output(place, {"export", checkpoint, "short"}, {"in bf16, model.safetensors"});
  check_output(place, {"export", "run", "final"}, {"source run/model:"});
  std::string weights = read_file(place.path() / checkpoint / "model.safetensors");
  weights.back() ^= 1;
  place.write(checkpoint + "/model.safetensors", weights);
  check_output(place, {"inspect", checkpoint}, {"state step 2"});
  check_refused(place, {"inspect", checkpoint, "--checksums"}, 3, "model.safetensors is damaged: its checksum is");
  place.write(checkpoint + "/state.json", "{}");
  check_refused(place, {"inspect", checkpoint}, 3, "state.json: no key 'format'");
}

TEST_CASE("every command that reads a checkpoint's weights refuses a flipped bit of them") {
  const ferry::TempFolder place;
  for (int i = 0; i < 6; ++i) place.write("a.txt", read_file(place.path() / "a.txt") + kText);
  const std::vector<std::string> short_run = {"--train-data", "a.txt", "--seq-len",       "32", "--batch-size", "2",
                                              "--steps",      "2",     "--sample-tokens", "0",  "--backend",    "cpu",
                                              "--dtype",      "bf16",  "--output"};
  const auto train = [&](std::vector<std::string> args, const std::string& output) {
    args.insert(args.begin(), "train");
    args.insert(args.end(), short_run.begin(), short_run.end());
    args.push_back(output);
    return args;
  };
  REQUIRE(run_ferry(place, train({"--model", "tiny", "--save-every", "2"}, "run")).exit_code == 0);
  const std::string folder = "run/checkpoints/step-00000002";
  const std::vector<std::vector<std::string>> readers = {
      {"export", folder, "exported"},
      {"eval", folder, "--val-data", "a.txt", "--backend", "cpu"},
      {"generate", folder, "--max-tokens", "3", "--backend", "cpu"},
      train({"--init-from", folder}, "tuned"),
      train({"--model", "tiny", "--resume", folder}, "resumed"),
      {"inspect", folder, "--checksums"},
  };
  const auto flip = [&](const std::string& name, const std::string& behind = "") {
    std::string bytes = read_file(place.path() / folder / name);
    (behind.empty() ? bytes[bytes.size() - 1000] : bytes[bytes.find(behind) + behind.size()]) ^= 1;
    place.write(folder + "/" + name, bytes);
  };
  const auto check_all_refused = [&](const std::string& name) {
    for (const auto& reader : readers)
      check_refused(place, reader, 3, folder + "/" + name + " is damaged: its checksum");
  };
  flip("model.safetensors");
  check_all_refused("model.safetensors");
  flip("model.safetensors");
  const std::string width = "\"hidden_size\": ";
  flip("config.json", width);
  check_all_refused("config.json");
  check_refused(place, {"inspect", folder}, 3, "config.json is damaged: its checksum");
  flip("config.json", width);
  CHECK_FALSE(std::filesystem::exists(place.path() / "exported"));
  CHECK_FALSE(std::filesystem::exists(place.path() / "tuned"));
  const std::string backend = "\"backend\": \"";
  flip("state.json", backend);
  check_refused(place, {"inspect", folder}, 3, "state.json is damaged: its checksum");
  flip("state.json", backend);
  flip("optimizer.safetensors");
  check_output(place, readers[0], {"in bf16"});  // reads none of it
  check_refused(place, {"export", folder, "exact", "--dtype", "f32"}, 3, "optimizer.safetensors is damaged: its chec");
  flip("optimizer.safetensors");
  for (const auto& reader : readers) CHECK(run_ferry(place, reader).exit_code == 0);
}

TEST_CASE("checksums are printed with the names of their files") {
  const ferry::TempFolder place;
  place.write("a.txt", kText);
  check_output(place, {"inspect", "a.txt", "--checksums"}, {"xxh128 ", "a.txt"});
  check_output(place, {"inspect", kStories, "--checksums"}, {" config.json", " tokenizer.json"});
}

TEST_CASE("inspect ends in a message at what is damaged or unknown") {
  const ferry::TempFolder place;
  place.write("a.safetensors", "damaged");
  place.write("a.bin", "other bytes");
  place.write("a.json", "{}");
  place.write("a.toml", "[run]\nstep = 5\n");
  check_refused(place, {"inspect", "absent"}, 3, "'absent' does not exist");
  check_refused(place, {"inspect", "a.safetensors"}, 3, "a.safetensors");
  check_refused(place, {"inspect", "a.bin"}, 3, "does not begin with FERRYTOK");
  check_refused(place, {"inspect", "a.json"}, 2, "a.json");
  check_refused(place, {"inspect", "a.toml"}, 2, "step");
  check_refused(place, {"inspect", "."}, 3, "holds no model");
  check_refused(place, {"inspect"}, 2, "usage: ferry inspect PATH");
  std::filesystem::create_directory(place.path() / "other");
  place.write("other/config.json", R"({"model_type":"llama","vocab_size":512,"hidden_size":64,"intermediate_size":172,
    "num_hidden_layers":4,"num_attention_heads":8,"num_key_value_heads":4,"tie_word_embeddings":true})");
  std::filesystem::copy_file(kStories + "/model.safetensors", place.path() / "other/model.safetensors");
  check_refused(place, {"inspect", "other"}, 3, "holds the tensor model.layers.4.");
}

TEST_CASE("generate takes the dtype of the stored weights, unless it is given") {
  const ferry::TempFolder place;
  const auto generated = [&](const std::vector<std::string>& flags) {
    std::vector<std::string> args = {"generate", kStories, "--max-tokens", "120", "--seed", "3", "--backend", "cpu"};
    args.insert(args.end(), flags.begin(), flags.end());
    return run_ferry(place, args).out;
  };
  const std::string stored = generated({});
  CHECK_FALSE(stored.empty());
  CHECK(generated({"--dtype", "f32"}) == stored);
  CHECK(generated({"--dtype", "bf16"}) != stored);
}

TEST_CASE("generate spells what a tokenizer.json spells, characters of several bytes too") {
  const ferry::TempFolder place;
  const auto generated = [&](const std::vector<std::string>& flags) {
    std::vector<std::string> args = {"generate", kStories, "--temperature", "0", "--dtype", "f32"};
    args.insert(args.end(), flags.begin(), flags.end());
    return run_ferry(place, args).out;
  };
  const std::string story = "Once upon a time, there was a little girl named Lily.";
  CHECK(generated({"--max-tokens", "30"}).starts_with(story));
  CHECK(generated({"--max-tokens", "30", "--prompt-ids", "1,403,407"}).starts_with(story));
  const std::string text = "Lily said: \u00e9 \u20ac \u65e5\u672c";
  const std::string continued = generated({"--max-tokens", "12", "--prompt", text});
  CHECK(continued.starts_with(text));
  CHECK(continued.size() > text.size() + 12);
}
