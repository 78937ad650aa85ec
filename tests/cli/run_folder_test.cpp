// SPDX-License-Identifier: Apache-2.0
// What a run's output folder may be.
#include "cli/run_folder.h"

#include "catch.h"
#include "temp_file.h"
#include "thrown.h"

namespace ferry {
namespace {

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST_CASE("a run without an output folder is refused") {
  CHECK(thrown([] { RunFolder("", ""); }) == "config: no output folder: set output, or give --output");
}

TEST_CASE("two runs may not write into one folder at a time") {
  const TempFolder place;
  RunFolder first(place.path() / "out", "");
  first.create("a = 1");
  RunFolder second(place.path() / "out", "");
  CHECK(has(thrown([&] { second.create("a = 2"); }), "is in use by another run"));
}

TEST_CASE("a folder that gets weights while a run prepares is left alone") {
  const TempFolder place;
  RunFolder folder(place.path() / "out", "");
  std::filesystem::create_directories(folder.model());
  CHECK(has(thrown([&] { folder.create("a = 1"); }), "holds the weights of an earlier run"));
}

TEST_CASE("a resumed run, which will replace the model's folder, keeps what the user has put there") {
  const TempFolder place;
  std::filesystem::create_directories(place.path() / "out/model");
  const auto resume = [&] { RunFolder(place.path() / "out", "", RunFolder::Use::kResumed); };
  for (const char* name : {"config.json", "model.safetensors", "tokenizer.json", ".tokenizer.json.tmp-1-0"}) {
    place.write(std::string("out/model/") + name, "x");
  }
  CHECK(thrown(resume).empty());
  place.write("out/model/README.md", "x");
  CHECK(has(thrown(resume), "holds 'README.md'"));
}

TEST_CASE("what a killed run has half-written goes when the next one starts") {
  const TempFolder place;
  namespace fs = std::filesystem;
  fs::create_directories(place.path() / "out");
  for (const char* name : {".config.toml.tmp-1-0", ".metrics.jsonl.tmp-1-2", ".config.toml.swp"}) {
    place.write(std::string("out/") + name, "x");
  }
  RunFolder folder(place.path() / "out", "");
  CHECK(fs::exists(place.path() / "out/.config.toml.tmp-1-0"));
  folder.create("a = 1");
  CHECK_FALSE(fs::exists(place.path() / "out/.config.toml.tmp-1-0"));
  CHECK_FALSE(fs::exists(place.path() / "out/.metrics.jsonl.tmp-1-2"));
  CHECK(fs::exists(place.path() / "out/.config.toml.swp"));  // an editor's
}

TEST_CASE("the folder is free again when its run has ended") {
  const TempFolder place;
  {
    RunFolder folder(place.path() / "out", "");
    folder.create("a = 1");
  }
  RunFolder again(place.path() / "out", "");
  CHECK(thrown([&] { again.create("a = 2"); }).empty());
}

}  // namespace
}  // namespace ferry
