// SPDX-License-Identifier: Apache-2.0
// Layout of help texts and of docs/cli.md.
#include "config/option_help.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "config/option_value.h"
#include "config/presets.h"

namespace ferry {
namespace {

constexpr std::size_t kFlagColumn = 30;  // fits the longest flag and its value name
constexpr std::size_t kLineWidth = 110;

std::string flag_with_value(const Option& option) {
  const std::string flag = flag_of(option);
  if (std::holds_alternative<BoolOption>(option.kind)) return flag;
  if (const auto* kind = std::get_if<TextOption>(&option.kind)) {
    return flag + (kind->form == TextOption::Form::kPath ? " PATH" : " TEXT");
  }
  if (const auto* kind = std::get_if<ListOption>(&option.kind)) {
    return flag + (std::string_view(kind->item) == "path" ? " PATH ..." : " TEXT ...");
  }
  if (std::holds_alternative<EnumOption>(option.kind)) return flag + " TEXT";
  return flag + (std::holds_alternative<IntOption>(option.kind) ? " INT" : " NUMBER");
}

// "" when the option is not given by default.
std::string default_of(const Option& option) {
  const OptionValue value = get_option(RunConfig{}, option);
  if (!is_allowed(option, value)) return "";
  const auto* text = std::get_if<TextOption>(&option.kind);
  const bool choice = std::holds_alternative<EnumOption>(option.kind) || (text != nullptr && !text->choices.empty());
  return choice ? std::get<std::string>(value) : to_toml(value);
}

// Short choices are worth their place in the help; ranges are in --help-all.
std::string choices_of(const Option& option) {
  if (const auto* kind = std::get_if<EnumOption>(&option.kind)) return fmt::format("{}", fmt::join(kind->choices, "|"));
  if (const auto* kind = std::get_if<TextOption>(&option.kind)) {
    std::string more = kind->pair_prefix == nullptr ? "" : fmt::format("|{}:A,B", kind->pair_prefix);
    for (const char* word : kind->counted) more += fmt::format("|{}:n", word);
    return fmt::format("{}{}", fmt::join(kind->choices, "|"), more);
  }
  return "";
}

// `left` in its column, `right` wrapped beside it.
std::string two_columns(const std::string& left, std::string_view right) {
  std::string line = fmt::format("  {:<{}}", left, kFlagColumn);
  std::size_t begin = 0;  // of the current line
  for (std::string_view gap; !right.empty(); gap = " ") {
    const std::string_view word = right.substr(0, right.find(' '));
    if (line.size() - begin + gap.size() + word.size() > kLineWidth) {
      line += '\n';
      begin = line.size();
      line.append(kFlagColumn + 2, ' ');
      gap = "";
    }
    line.append(gap).append(word);
    right.remove_prefix(std::min(word.size() + 1, right.size()));
  }
  return line + "\n";
}

std::string option_help(const Option& option, bool all) {
  std::string text = option.help;
  const std::string choices = choices_of(option);
  if (!choices.empty()) text += fmt::format(": {}", choices);
  if (all && choices.empty() && !std::holds_alternative<BoolOption>(option.kind)) {
    text += fmt::format("; {}", allowed_values(option));
  }
  const std::string value = default_of(option);
  if (!value.empty()) text += fmt::format(" [{}]", value);
  return two_columns(flag_with_value(option), text);
}

std::string commands_of(const Option& option) {
  std::vector<const char*> names;
  for (const CommandInfo& info : command_table()) {
    if (takes(info.command, option)) names.push_back(info.name);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string section_markdown(std::string_view section) {
  std::string text = fmt::format("\n## [{}]\n\n| key | default | allowed | commands | what it does |\n", section);
  text += "|---|---|---|---|---|\n";
  for (const Option& option : option_table()) {
    if (section != option.section) continue;
    const std::string value = default_of(option);
    text += fmt::format("| `{}` | {} | {} | {} | {} |\n", option.key,
                        value.empty() ? "not given" : fmt::format("`{}`", value), allowed_values(option),
                        commands_of(option), option.help);
  }
  return text;
}

}  // namespace

std::string program_help() {
  std::string text = "Trains Llama models that do not fit on the GPU.\n\nUsage: ferry COMMAND [flags]\n\n";
  for (const CommandInfo& info : command_table()) text += two_columns(info.name, info.help);
  text += "\n";
  text += two_columns("--version", "Print the version");
  text += two_columns("--help", "Print this text");
  text += "\n`ferry COMMAND --help` lists the flags of a command.\n";
  return text;
}

std::string command_help(const CommandInfo& command, bool all) {
  std::string text = fmt::format("{}\n\nUsage: ferry {} {} [flags]\n", command.help, command.name, command.positional);
  bool hidden = false;
  std::string_view section;
  for (const Option& option : option_table()) {
    if (!takes(command.command, option)) continue;
    hidden = hidden || option.advanced;
    if (option.advanced && !all) continue;
    if (section != option.section) {
      section = option.section;
      text += fmt::format("\n[{}]\n", section);
    }
    text += option_help(option, all);
  }
  text += "\n";
  text += two_columns("--config PATH", "TOML file with these keys; flags win over it");
  text += two_columns("--help", "Print this text");
  text += two_columns("--help-all", hidden ? "Print all flags and their ranges" : "Print the ranges too");
  return text;
}

std::string cli_markdown() {
  std::string text =
      "# Command line and configuration file\n\n"
      "Made from the option table in `src/config/option_table.cpp`; a test compares the two.\n\n"
      "| command | what it does |\n|---|---|\n";
  for (const CommandInfo& info : command_table()) {
    text += fmt::format("| `ferry {} {}` | {} |\n", info.name, info.positional, info.help);
  }
  text += fmt::format(
      "\nEvery key below is a key of the TOML file, under its section, and a flag: `batch_size = 8` under `[data]` is\n"
      "`--batch-size 8`. `ferry train configs/tiny.toml --lr 1e-3` (or `--config configs/tiny.toml`) reads the file "
      "first;\n"
      "flags win over it.\n\n"
      "Without a file `ferry train`, `plan` and `bench` go by `configs/tiny.toml`, which is part of the program, but\n"
      "`--train-data` without `--val-data` leaves out its validation, and the warmup, unless the line has one, is at\n"
      "most a quarter of `steps`. Where the line has `--model` or `--init-from` and no file, all other keys have the\n"
      "defaults below (`ferry bench step --model llama-3.2-1b`).\n\n"
      "- `ferry COMMAND --help` lists the flags that are used most, `--help-all` all flags of the command.\n"
      "- `true` and `false` keys are switches: `--quiet`, `--no-quiet`.\n"
      "- A size is a number with a unit: `6.8GB` (10^9 bytes), `4GiB` (2^30), and the like with k, M, T.\n"
      "- A flag of a list is repeated: `--train-data a.bin --train-data b.bin`.\n"
      "- Relative paths, in the file and on the line, count from the current directory.\n"
      "- Exactly one of `steps` and `epochs` is given; on the line, one replaces the other of the file.\n"
      "- `ferry bench` leaves `steps` and `epochs` of the file alone: `bench step` times 20 steps, or `--steps`.\n"
      "- `ferry bench ops` has shapes of its own, of both dtypes unless `--dtype` is given. With a file or `--model`\n"
      "  it times one layer of that model at `batch_size` x `seq_len`.\n"
      "- A target of `ferry bench` refuses a flag that would change nothing there.\n"
      "- `model` is a preset ({}), a folder or a config.json. A folder named like a preset is written `./name`.\n"
      "- An unknown key, a key in the wrong section, a duplicate or a value out of range is an error.\n"
      "- Keys that a command does not use may stand in its file.\n",
      fmt::join(preset_names(), ", "));
  for (std::string_view section : option_sections()) text += section_markdown(section);
  return text;
}

}  // namespace ferry
