// SPDX-License-Identifier: Apache-2.0
// The one table of options. Flags, file keys, help, docs/cli.md and saved configs are all made from it.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "config/run_config.h"

namespace ferry {

enum class Command : unsigned {
  kTrain = 1,
  kGenerate = 2,
  kBench = 4,
  kPlan = 8,
  kEval = 16,
  kExport = 32,
  kInspect = 64
};

struct CommandInfo {
  Command command;
  const char* name;
  const char* positional;  // its arguments that are not flags, as a usage line shows them
  const char* help;
};
std::span<const CommandInfo> command_table();

/// Throws Error{kConfig} with the known commands and the nearest one.
const CommandInfo& find_command(std::string_view name);

struct IntOption {
  std::int64_t RunConfig::*field;
  std::int64_t min;
  std::int64_t max;
};
struct RealOption {
  double RunConfig::*field;
  double min;
  double max;
  bool min_excluded = false;
  bool max_excluded = false;
};
struct BoolOption {
  bool RunConfig::*field;
};
/// Never empty. kChoice is one of `choices`, or two of them as "<pair_prefix>:A,B" where there is a prefix, or one of
/// `counted` with a number: "<word>:n", n from 1 to kMaxCount. kSize is one of `choices`, or a size: "6.8GB".
struct TextOption {
  enum class Form { kName, kPath, kChoice, kSize };
  static constexpr std::int64_t kMaxCount = 2147483647;
  std::string RunConfig::*field;
  Form form;
  std::vector<const char*> choices;
  const char* pair_prefix = nullptr;
  std::vector<const char*> counted = {};
};
struct ListOption {
  std::vector<std::string> RunConfig::*field;
  const char* item;  // "path": what one of them is
};
/// An enum whose enumerators are 0, 1, ... in the order of `choices`.
struct EnumOption {
  int (*get)(const RunConfig&);
  void (*set)(RunConfig&, int);
  std::vector<const char*> choices;
};

struct Option {
  const char* key;
  const char* section;
  std::variant<IntOption, RealOption, BoolOption, TextOption, ListOption, EnumOption> kind;
  const char* help;   // one line
  bool advanced;      // absent from the short help
  unsigned commands;  // union of Command values
};

/// Grouped by section, in the order of help and docs.
std::span<const Option> option_table();
/// Section names in that order.
std::vector<std::string_view> option_sections();

inline bool takes(Command command, const Option& option) {
  return (option.commands & static_cast<unsigned>(command)) != 0;
}

/// nullptr when there is no such key.
const Option* find_option(std::string_view key);

/// "train_data" -> "--train-data"
std::string flag_of(const Option& option);

}  // namespace ferry
