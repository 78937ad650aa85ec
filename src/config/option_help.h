// SPDX-License-Identifier: Apache-2.0
// Help texts and docs/cli.md, made from the option table.
#pragma once

#include <string>

#include "config/option_table.h"

namespace ferry {

/// `ferry --help`: the commands.
std::string program_help();

/// `ferry <command> --help`, and --help-all when `all`.
std::string command_help(const CommandInfo& command, bool all);

/// The text of docs/cli.md.
std::string cli_markdown();

}  // namespace ferry
