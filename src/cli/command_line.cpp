// SPDX-License-Identifier: Apache-2.0
// The one source that sees CLI11: it splits the line into flags and texts, the option table does the rest.
#include "cli/command_line.h"

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <map>

#include "config/config_file.h"
#include "config/embedded_default.h"
#include "config/nearest.h"
#include "config/option_help.h"
#include "config/option_value.h"
#include "config/text_file.h"
#include "core/error.h"

namespace ferry {
namespace {

constexpr std::array<std::string_view, 5> kBenchTargets = {"ops", "step", "floor", "adamw", "machine"};

// What the line says, before any value is looked at.
struct RawLine {
  bool help = false;
  bool help_all = false;
  std::vector<std::string> positional;
  std::vector<std::string> config_files;
  std::map<const Option*, std::vector<std::string>> texts;  // in the order given
  std::vector<std::string> unknown;
};

bool is_switch(const Option& option) { return std::holds_alternative<BoolOption>(option.kind); }

std::string negated_flag(const Option& option) { return fmt::format("--no-{}", flag_of(option).substr(2)); }

// Raw texts, read with results(): CLI11's own conversions split "[a,b]" and drop "{}".
CLI::Option* declare(CLI::App& app, const std::string& flag) { return app.add_option(flag)->take_all(); }

std::map<const Option*, CLI::Option*> declare_options(CLI::App& app, Command command) {
  std::map<const Option*, CLI::Option*> declared;
  for (const Option& option : option_table()) {
    if (!takes(command, option)) continue;
    const std::string flag = flag_of(option);
    declared[&option] =
        is_switch(option) ? app.add_flag(fmt::format("{},!{}", flag, negated_flag(option))) : declare(app, flag);
  }
  return declared;
}

void parse(CLI::App& app, const CommandInfo& command, const std::vector<std::string>& args) {
  std::vector<std::string> reversed(args.rbegin(), args.rend());  // as CLI11 takes them
  try {
    app.parse(reversed);
  } catch (const CLI::ArgumentMismatch& error) {
    const std::string what = error.what();  // "--lr: 1 required TEXT missing"
    detail::throw_error(ErrorKind::kConfig,
                        fmt::format("ferry {}: {} needs a value", command.name, shown(what.substr(0, what.find(':')))));
  } catch (const CLI::ParseError& error) {
    detail::throw_error(ErrorKind::kConfig, fmt::format("ferry {}: {}", command.name, shown(error.what())));
  }
}

RawLine split_line(const CommandInfo& command, const std::vector<std::string>& args) {
  RawLine raw;
  CLI::App app;
  app.allow_extras();
  app.set_help_flag();
  app.add_flag("-h,--help", raw.help);
  app.add_flag("--help-all", raw.help_all);
  const CLI::Option* config = declare(app, "--config");
  const auto declared = declare_options(app, command.command);
  parse(app, command, args);
  raw.config_files = config->results();
  for (const auto& [option, flag] : declared) {
    if (flag->count() != 0) raw.texts[option] = flag->results();
  }
  for (const std::string& word : app.remaining()) {
    if (word != "--") (word.starts_with('-') ? raw.unknown : raw.positional).push_back(word);
  }
  return raw;
}

void refuse_unknown(const CommandInfo& command, const RawLine& raw) {
  if (raw.unknown.empty()) return;
  const std::string word = raw.unknown.front().substr(0, raw.unknown.front().find('='));
  std::vector<std::string> flags = {"--help", "--help-all", "--config"};
  for (const Option& option : option_table()) {
    if (!takes(command.command, option)) continue;
    flags.push_back(flag_of(option));
    if (is_switch(option)) flags.push_back(negated_flag(option));
  }
  const std::vector<std::string_view> known(flags.begin(), flags.end());
  detail::throw_error(ErrorKind::kConfig,
                      fmt::format("ferry {}: unknown flag '{}'{} (`ferry {} --help-all` lists all)", command.name,
                                  shown(word), did_you_mean(word, known), command.name));
}

void check_count(const CommandInfo& command, const RawLine& raw) {
  const bool two = command.command == Command::kBench || command.command == Command::kExport;
  const std::size_t most = two ? 2 : 1;
  const bool takes_paths = command.command == Command::kExport || command.command == Command::kInspect;
  FERRY_CHECK(!takes_paths || raw.positional.size() >= most, kConfig, "usage: ferry {} {} [flags]", command.name,
              command.positional);
  FERRY_CHECK(raw.positional.size() <= most, kConfig,
              "ferry {}: '{}' is one argument too many (usage: ferry {} {} [flags])", command.name,
              shown(raw.positional[most]), command.name, command.positional);
}

// An argument that is not a flag, or "".
std::string positional_of(const RawLine& raw, std::size_t index) {
  return raw.positional.size() <= index ? "" : raw.positional[index];
}

void read_bench_target(const RawLine& raw, CommandLine& line) {
  line.bench_target = positional_of(raw, 0);
  const std::string known = fmt::format("targets: {}", fmt::join(kBenchTargets, ", "));
  FERRY_CHECK(!line.bench_target.empty(), kConfig, "ferry bench: no target ({})", known);
  FERRY_CHECK(std::ranges::count(kBenchTargets, line.bench_target) != 0, kConfig,
              "ferry bench: unknown target '{}'{} ({})", shown(line.bench_target),
              did_you_mean(line.bench_target, kBenchTargets), known);
}

// Without a file. A model on the line stands for the defaults of all other keys: the built-in ones suit another model.
bool runs_built_in(const CommandInfo& command, const RawLine& raw) {
  const bool takes_it =
      command.command == Command::kTrain || command.command == Command::kBench || command.command == Command::kPlan;
  return takes_it && !raw.texts.contains(find_option("model")) && !raw.texts.contains(find_option("init_from"));
}

void read_config(const CommandInfo& command, const RawLine& raw, CommandLine& line) {
  std::vector<std::string> files = raw.config_files;
  const std::size_t place = command.command == Command::kBench ? 1 : 0;  // after the target
  const bool takes_file =
      command.command == Command::kTrain || command.command == Command::kPlan || command.command == Command::kBench;
  const std::string file = takes_file ? positional_of(raw, place) : "";
  if (!file.empty()) files.push_back(file);
  FERRY_CHECK(files.size() <= 1, kConfig, "ferry {}: two config files, '{}' and '{}': give one", command.name,
              shown(files[0]), shown(files[1]));
  if (!files.empty()) {
    line.config_source = files.front();
    read_config_file(files.front(), line.config);
  } else if (runs_built_in(command, raw)) {
    line.config_source = "built-in configs/tiny.toml";
    read_config_text(embedded_default_config(), line.config_source, line.config);
  }
  if (command.command == Command::kBench) line.config.steps = line.config.epochs = 0;  // they are a training run's
}

// A run has one length: on the line, --steps replaces the file's epochs and the reverse.
void replace_length(const RawLine& raw, RunConfig& config) {
  const bool steps = raw.texts.contains(find_option("steps"));
  const bool epochs = raw.texts.contains(find_option("epochs"));
  if (steps && !epochs) config.epochs = 0;
  if (epochs && !steps) config.steps = 0;
}

void read_flags(const RawLine& raw, RunConfig& config) {
  for (const auto& [option, texts] : raw.texts) {
    const bool list = std::holds_alternative<ListOption>(option->kind);
    FERRY_CHECK(list || texts.size() == 1, kConfig, "{} is given {} times: give it once", flag_of(*option),
                texts.size());
    set_option(config, *option, parse_flag_text(*option, texts), flag_of(*option));
  }
  replace_length(raw, config);
}

// Texts of one's own are not judged by the built-in config's validation text.
void drop_built_in_validation(const RawLine& raw, CommandLine& line) {
  const bool own_text = raw.texts.contains(find_option("train_data")) && !raw.texts.contains(find_option("val_data"));
  if (line.runs_built_in() && own_text) {
    line.config.val_data.clear();
    line.config.eval_every = 0;
  }
}

// A run shorter than the built-in one keeps most of its steps for what follows the warmup.
void shorten_built_in_warmup(const RawLine& raw, CommandLine& line) {
  if (!line.runs_built_in() || raw.texts.contains(find_option("warmup_steps")) || line.config.steps == 0) return;
  line.config.warmup_steps = std::min(line.config.warmup_steps, line.config.steps / 4);
}

using Keys = std::vector<std::string_view>;

bool has_key(const Keys& keys, const Option& option) { return std::ranges::count(keys, option.key) != 0; }

// Whether a target of `bench` goes by the option.
bool target_takes(const std::string& target, const Option& option) {
  if (target == "step") return !has_key({"floor_seconds", "adamw_params", "machine_seconds"}, option);
  if (has_key({"backend", "device", "threads"}, option)) return true;
  if (target == "adamw") return has_key({"adamw_params"}, option);
  if (target == "machine") return has_key({"adamw_params", "attention", "machine_seconds", "rates"}, option);
  if (has_key({"model", "batch_size", "seq_len", "dtype", "attention"}, option)) return true;
  return target == "floor" &&
         has_key({"accumulate", "recompute", "mlp_chunk", "head", "vocab_chunk", "floor_seconds"}, option);
}

// What a target has no use for may stand in its file, not on its line. Without a model the shapes of `bench ops` are
// fixed.
void refuse_idle_flags(const RawLine& raw, const CommandLine& line) {
  for (const auto& [option, texts] : raw.texts) {
    FERRY_CHECK(target_takes(line.bench_target, *option), kConfig,
                "ferry bench {}: {} changes nothing there: leave it out (other targets take it)", line.bench_target,
                flag_of(*option));
    const bool of_model = line.bench_target == "ops" && has_key({"model", "batch_size", "seq_len"}, *option);
    FERRY_CHECK(!of_model || !line.runs_built_in(), kConfig,
                "ferry bench ops: {} needs a model (its shapes are fixed otherwise): add --model or a config file",
                flag_of(*option));
  }
}

void read_model(const CommandInfo& command, const RawLine& raw, CommandLine& line) {
  const std::string word = positional_of(raw, 0);
  if (word.empty()) return;
  FERRY_CHECK(!raw.texts.contains(find_option("model")), kConfig, "ferry {}: two models, '{}' and --model: give one",
              command.name, shown(word));
  line.config.model = word;
}

CommandLine only_text(std::string text) {
  CommandLine line;
  line.text = std::move(text);
  return line;
}

}  // namespace

CommandLine parse_command_line(const std::vector<std::string>& args) {
  if (args.empty() || args[0] == "--help" || args[0] == "-h" || args[0] == "--help-all") {
    return only_text(program_help());
  }
  if (args[0] == "--version") return only_text("ferry " FERRY_VERSION "\n");
  const CommandInfo& command = find_command(args[0]);
  const RawLine raw = split_line(command, {args.begin() + 1, args.end()});
  if (raw.help || raw.help_all) return only_text(command_help(command, raw.help_all));
  refuse_unknown(command, raw);
  check_count(command, raw);

  CommandLine line;
  line.command = command.command;
  line.dtype_given = raw.texts.contains(find_option("dtype"));
  line.seq_len_given = raw.texts.contains(find_option("seq_len"));
  if (command.command == Command::kBench) read_bench_target(raw, line);
  read_config(command, raw, line);
  if (command.command == Command::kBench) refuse_idle_flags(raw, line);
  read_flags(raw, line.config);
  drop_built_in_validation(raw, line);
  shorten_built_in_warmup(raw, line);
  if (command.command == Command::kGenerate || command.command == Command::kEval) read_model(command, raw, line);
  if (command.command == Command::kExport || command.command == Command::kInspect) line.paths = raw.positional;
  validate(line.config, command.command);
  return line;
}

}  // namespace ferry
