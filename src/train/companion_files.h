// SPDX-License-Identifier: Apache-2.0
// The small files beside a model's weights and config.json that say how to use it.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace ferry {

/// Copies those of generation_config.json and the tokenizer's files that `from` has into the folder `to`: their names.
/// Throws Error{kIo}.
std::vector<std::string> copy_companion_files(const std::filesystem::path& from, const std::filesystem::path& to);

/// Whether copy_companion_files() copies files of this name.
bool is_companion_file(std::string_view name);

}  // namespace ferry
