// SPDX-License-Identifier: Apache-2.0
// The command line: which command, with which options, or which text to print instead.
#pragma once

#include <string>
#include <vector>

#include "config/option_table.h"
#include "config/run_config.h"

namespace ferry {

struct CommandLine {
  std::string text;  // help or version: print it and do nothing else
  Command command = Command::kTrain;
  RunConfig config;
  std::string config_source;       // the config file, "built-in configs/tiny.toml", or "" for defaults and flags alone
  std::string bench_target;        // "ops", "step", "floor", "adamw" or "machine"
  std::vector<std::string> paths;  // export: source and target; inspect: what to look at
  bool dtype_given = false;        // on the line
  bool seq_len_given = false;      // on the line

  bool runs_built_in() const { return config_source.starts_with("built-in"); }
};

/// `args` without the program's name. Reads the config file, then lets the flags win, then checks the whole.
/// Throws Error{kConfig} (unknown command or flag with the nearest one, bad value, contradiction) or Error{kIo} (file).
/// Prints nothing, never exits.
CommandLine parse_command_line(const std::vector<std::string>& args);

}  // namespace ferry
