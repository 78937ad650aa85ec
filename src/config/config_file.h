// SPDX-License-Identifier: Apache-2.0
// RunConfig <-> TOML files. Sections are tables: key lr is `lr` under `[optimizer]`.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "config/run_config.h"

namespace ferry {

/// Stores what the file sets; other fields stay as they are. Paths in it count from the current directory.
/// Throws Error{kIo} (unreadable) or Error{kConfig}: not TOML, unknown section or key, key in the wrong section,
/// duplicate, bad value; with file, line, key, value, what is allowed and the nearest known key.
void read_config_file(const std::filesystem::path& path, RunConfig& config);

/// The same from text; `name` stands for the file in messages.
void read_config_text(std::string_view text, std::string_view name, RunConfig& config);

/// Every option but those not given, by section; reads back equal.
std::string to_toml(const RunConfig& config);

}  // namespace ferry
