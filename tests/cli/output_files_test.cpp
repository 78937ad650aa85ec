// SPDX-License-Identifier: Apache-2.0
// Files that the program would write over its own input, or over each other.
#include <map>

#include "catch.h"
#include "cli/run_ferry.h"
#include "cli/workplace.h"

using namespace ferry::test;

namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

/// Content of every file, by its path in the folder, without what the child process has printed.
std::map<std::string, std::string> content_of(const Workplace& place) {
  std::map<std::string, std::string> content;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(place.path())) {
    const std::string name = entry.path().lexically_relative(place.path()).string();
    if (entry.is_regular_file() && name != ".stdout" && name != ".stderr") content[name] = read_file(entry.path());
  }
  return content;
}

/// Refused with exit code 2 and `message`, and no file has changed or come.
void check_kept(const Workplace& place, const Words& args, const std::string& message) {
  const auto before = content_of(place);
  check_refused(place, args, 2, message);
  CHECK(content_of(place) == before);
}

Words with(Words args, const Words& more) {
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

/// A model with a tokenizer in `folder`, from a short run.
void make_model(const Workplace& place, const std::string& folder, const Words& flags = {}) {
  const Outcome made =
      run_ferry(place, with({"train", "tiny.toml", "--steps", "2", "--sample-tokens", "0", "--output", folder}, flags));
  INFO(made.err);
  REQUIRE(made.exit_code == 0);
  place.write((fs::path(folder) / "model/tokenizer.json").string(), "{}");
}

}  // namespace

TEST_CASE("train does not write a log or a trace over what it reads") {
  const Workplace place;
  place.write("train.txt.mask", std::string(fs::file_size(place.path() / "train.txt"), '\1'));
  place.write("rates.json", "{}");
  const Words train = {"train", "tiny.toml", "--rates", "rates.json"};
  for (const std::string option : {"log_file", "trace"}) {
    const std::string flag = option == "trace" ? "--trace" : "--log-file";
    const auto refused = [&](const std::string& file, const std::string& input) {
      check_kept(place, with(train, {flag, file}),
                 option + " '" + file + "' is " + input + ", which is read: it would be overwritten, give the name");
    };
    refused("train.txt", "train_data 'train.txt'");
    refused("train.txt.mask", "the mask of train_data 'train.txt.mask'");
    refused("val.txt", "val_data 'val.txt'");
    refused("model.json", "model 'model.json'");
    refused("tiny.toml", "config 'tiny.toml'");
    refused("rates.json", "rates 'rates.json'");
  }
}

TEST_CASE("an input is known by any of its names") {
  const Workplace place;
  fs::create_directory(place.path() / "sub");
  fs::create_symlink("train.txt", place.path() / "link.txt");
  fs::create_symlink("../val.txt", place.path() / "sub/deep.txt");
  for (const std::string& name :
       {std::string("./sub/../train.txt"), (place.path() / "train.txt").string(), std::string("link.txt")}) {
    check_kept(place, {"train", "tiny.toml", "--trace", name}, "' is train_data 'train.txt'");
    check_kept(place, {"train", "tiny.toml", "--log-file", "train.txt", "--train-data", name}, " is train_data '");
  }
  check_kept(place, {"train", "tiny.toml", "--log-file", "sub/deep.txt"}, "is val_data 'val.txt'");
}

TEST_CASE("train does not write over the files of a model that it begins with") {
  const Workplace place;
  make_model(place, "first");
  place.write("first/model/old_trace.json", "");
  const Words train = {"train", "tiny.toml", "--steps", "2", "--sample-tokens", "0", "--init-from", "first/model"};
  for (const std::string file : {"config.json", "model.safetensors", "tokenizer.json"}) {
    check_kept(place, with(train, {"--trace", "first/model/" + file}), "is init_from 'first/model/" + file + "'");
  }
  check_kept(place, with(train, {"--model", "first/model", "--log-file", "first/model/config.json"}),
             "is model 'first/model/config.json'");
  const Outcome traced = run_ferry(place, with(train, {"--trace", "first/model/old_trace.json"}));
  INFO(traced.err);
  CHECK(traced.exit_code == 0);  // not a file of the model
}

TEST_CASE("train does not write over the checkpoint that it goes on from") {
  const Workplace place;
  make_model(place, "first", {"--save-every", "1"});
  const std::string state = "first/checkpoints/step-00000002/state.json";
  for (const std::string resume : {"first", "first/checkpoints/step-00000002"}) {
    check_kept(place, {"train", "tiny.toml", "--output", "more", "--resume", resume, "--trace", state},
               "trace '" + state + "' lies in resume 'first/checkpoints");
  }
  const Outcome resumed = run_ferry(place, {"train", "tiny.toml", "--output", "more", "--resume", "first", "--steps",
                                            "3", "--sample-tokens", "0", "--log-file", "first/more.log"});
  INFO(resumed.err);
  CHECK(resumed.exit_code == 0);
}

TEST_CASE("two outputs of a run are two files") {
  const Workplace place;
  const Words train = {"train", "tiny.toml", "--steps", "2", "--sample-tokens", "0"};
  check_kept(place, with(train, {"--trace", "a/b", "--log-file", "./a/../a/b"}),
             "log_file './a/../a/b' and trace 'a/b' are one file, or one lies in the other: give each");
  check_kept(place, with(train, {"--trace", "a/b", "--log-file", "a"}), "log_file 'a' and trace 'a/b'");
  check_kept(place, with(train, {"--trace", "out"}), "output 'out' is trace 'out': give the folder");
  check_kept(place, with(train, {"--log-file", "out", "--output", "out/deep"}),
             "output 'out/deep' lies in log_file 'out'");
  for (const std::string own : {"out/config.toml", "out/metrics.jsonl", "out/loss.svg"}) {
    check_kept(place, with(train, {"--trace", own}), "trace '" + own + "' is '" + own + "', which the run writes");
  }
  for (const std::string own : {"out/model", "out/checkpoints"}) {
    check_kept(place, with(train, {"--log-file", own + "/a.log"}),
               "log_file '" + own + "/a.log' lies in '" + own + "', which the run writes itself: give the name");
  }
  const Outcome trained = run_ferry(place, with(train, {"--trace", "out/trace.json", "--log-file", "out/run.log"}));
  INFO(trained.err);
  CHECK(trained.exit_code == 0);
}

TEST_CASE("a run does not replace its own input in its output folder") {
  const Workplace place;
  make_model(place, "out", {"--save-every", "1"});
  const Words resume = {"train", "tiny.toml", "--resume", "auto", "--steps", "3", "--sample-tokens", "0"};
  check_kept(place, with(resume, {"--init-from", "out/model"}),
             "lies in 'out/model', which the run writes: it would be lost, give another folder with --output");
  check_kept(place, with(resume, {"--train-data", "out/metrics.jsonl"}),
             "train_data 'out/metrics.jsonl' is 'out/metrics.jsonl', which the run writes");
  const Outcome resumed = run_ferry(place, {"train", "out/config.toml", "--resume", "auto", "--steps", "3"});
  INFO(resumed.err);
  CHECK(resumed.exit_code == 0);
}

TEST_CASE("bench does not write a trace or rates over what it or its config file names") {
  const Workplace place;
  place.write("rates.json", "{}");
  const Words step = {"bench", "step", "tiny.toml", "--rates", "rates.json", "--trace"};
  check_kept(place, with(step, {"model.json"}), "trace 'model.json' is model 'model.json', which is read");
  check_kept(place, with(step, {"tiny.toml"}), "trace 'tiny.toml' is config 'tiny.toml'");
  check_kept(place, with(step, {"./rates.json"}), "trace './rates.json' is rates 'rates.json'");
  const Words machine = {"bench", "machine", "tiny.toml", "--rates"};
  check_kept(place, with(machine, {"tiny.toml"}), "rates 'tiny.toml' is config 'tiny.toml'");
  check_kept(place, with(machine, {"train.txt"}), "rates 'train.txt' is train_data 'train.txt'");
}
