// SPDX-License-Identifier: Apache-2.0
#include "config/option_table.h"

#include <set>
#include <string>

#include "catch.h"
#include "config/option_value.h"
#include "thrown.h"

namespace ferry {
namespace {

TEST_CASE("keys are unique over all sections") {
  std::set<std::string> keys;
  for (const Option& option : option_table()) {
    INFO(option.key);
    CHECK(keys.insert(option.key).second);
  }
}

TEST_CASE("each section stands in one place of the table") {
  const auto sections = option_sections();
  CHECK(std::set<std::string_view>(sections.begin(), sections.end()).size() == sections.size());
}

TEST_CASE("every option is taken by a command and explained in one line") {
  for (const Option& option : option_table()) {
    INFO(option.key);
    CHECK(option.commands != 0);
    const std::string help = option.help;
    CHECK_FALSE(help.empty());
    CHECK(help.find('\n') == std::string::npos);
    CHECK(help.find('|') == std::string::npos);  // it would end a cell of docs/cli.md
  }
}

TEST_CASE("every default is in range or means not given") {
  for (const Option& option : option_table()) {
    INFO(option.key);
    const OptionValue value = get_option(RunConfig{}, option);
    const bool not_given = value == OptionValue(std::string()) || value == OptionValue(std::int64_t{0}) ||
                           value == OptionValue(std::int64_t{-1}) || value == OptionValue(std::vector<std::string>());
    CHECK((not_given || is_allowed(option, value)));
  }
}

TEST_CASE("options are found by key, flags spell them with dashes") {
  REQUIRE(find_option("batch_size") != nullptr);
  CHECK(flag_of(*find_option("batch_size")) == "--batch-size");
  CHECK(find_option("batch-size") == nullptr);
  CHECK(find_option("") == nullptr);
}

TEST_CASE("plan pins are absent from the short help only") {
  for (const Option& option : option_table()) {
    INFO(option.key);
    CHECK(option.advanced == (std::string_view(option.section) == "plan" && std::string_view(option.key) != "rates"));
  }
}

TEST_CASE("an unknown command lists the commands and the nearest one") {
  CHECK(find_command("bench").command == Command::kBench);
  CHECK(thrown([] { find_command("genrate"); }) ==
        "config: unknown command 'genrate': did you mean 'generate'? (commands: train, generate, eval, export, "
        "inspect, plan, bench)");
}

}  // namespace
}  // namespace ferry
