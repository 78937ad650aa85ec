// SPDX-License-Identifier: Apache-2.0
// The commands, one source file each, and the exit codes they share.
#pragma once

#include "cli/command_line.h"
#include "core/error.h"

namespace ferry {

inline constexpr int kExitInternal = 70;  // a bug of ferry

/// 2 config, 3 io, 4 memory, 5 device, 6 shape or dtype.
int exit_code(ErrorKind kind);

/// Each returns the exit code and throws what goes wrong.
/// `ferry train`: 0, or 128 + signal after a run that Ctrl-C or SIGTERM ended early.
int run_train(const CommandLine& line);
/// `ferry generate`: text to stdout as it comes.
int run_generate(const CommandLine& line);
/// `ferry eval`: loss, perplexity and speed to stdout, or a line of JSON.
int run_eval(const CommandLine& line);
/// `ferry export`: what has been written to stdout.
int run_export(const CommandLine& line);
/// `ferry inspect`: a table to stdout.
int run_inspect(const CommandLine& line);
/// `ferry plan`: a table to stdout; nothing is allocated.
int run_plan(const CommandLine& line);
/// `ferry bench`: a table to stdout.
int run_bench(const CommandLine& line);

}  // namespace ferry
