// SPDX-License-Identifier: Apache-2.0
// Files that a command writes may be none that it reads, and each must be one of its own.
#pragma once

#include "cli/command_line.h"

namespace ferry {

/// Compares what `ferry train` and `ferry bench` would write with what the line and its config file name as input,
/// whether the target reads it or not, and with each other: by file, not by text. Reads folders, writes nothing.
/// Throws Error{kConfig} with both names. Files that do not exist are nobody's input.
void check_output_files(const CommandLine& line);

}  // namespace ferry
