// SPDX-License-Identifier: Apache-2.0
#include "config/option_help.h"

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "catch.h"

namespace ferry {
namespace {

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST_CASE("the short help leaves out the plan's pins, the long one has them") {
  const CommandInfo& train = find_command("train");
  const std::string brief = command_help(train, false);
  const std::string full = command_help(train, true);
  CHECK(has(brief, "--batch-size INT"));
  CHECK_FALSE(has(brief, "--weight-slots"));
  CHECK(has(full, "--weight-slots INT"));
  CHECK(has(full, "an integer from 2 to 64"));
}

TEST_CASE("help shows choices and defaults") {
  const std::string text = command_help(find_command("train"), false);
  CHECK(has(text, "f32|bf16 [bf16]"));
  CHECK(has(text, "Highest learning rate [0.0003]"));
}

TEST_CASE("help of a command lists its own flags only") {
  const std::string text = command_help(find_command("bench"), true);
  CHECK(has(text, "--threads"));
  CHECK(has(text, "--floor-seconds"));
  CHECK_FALSE(has(text, "--lr"));
  CHECK(has(text, "Usage: ferry bench TARGET [CONFIG] [flags]"));
}

TEST_CASE("help lines fit a terminal and have no trailing spaces") {
  std::string all = program_help();
  for (const CommandInfo& command : command_table()) all += command_help(command, true);
  std::istringstream lines(all);
  for (std::string line; std::getline(lines, line);) {
    INFO(line);
    CHECK(line.size() <= 110);
    CHECK((line.empty() || line.back() != ' '));
  }
}

TEST_CASE("docs/cli.md matches the option table", "[docs]") {
  const std::string path = FERRY_SOURCE_DIR "/docs/cli.md";
  if (std::getenv("FERRY_UPDATE_DOCS") != nullptr) std::ofstream(path) << cli_markdown();
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  INFO("docs/cli.md is out of date: run FERRY_UPDATE_DOCS=1 ferry_test_config [docs]");
  CHECK(text.str() == cli_markdown());
}

}  // namespace
}  // namespace ferry
