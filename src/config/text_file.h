// SPDX-License-Identifier: Apache-2.0
// Reading a small text file that may be hostile.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

namespace ferry {

inline constexpr std::size_t kMaxTextFileBytes = std::size_t{1} << 20;

/// The whole of a regular file of at most kMaxTextFileBytes. Throws Error{kIo} naming the path.
std::string read_text_file(const std::filesystem::path& path);

/// Well-formed UTF-8 without NUL.
bool is_text(std::string_view bytes);

/// `text` cut to a length that fits a message, with control characters and broken UTF-8 replaced by '?'.
std::string shown(std::string_view text);

}  // namespace ferry
