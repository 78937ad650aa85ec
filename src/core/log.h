// SPDX-License-Identifier: Apache-2.0
// Logging: levelled messages to stderr and, when set, to a file. spdlog stays behind this header.
#pragma once

#include <fmt/core.h>

#include <string>
#include <string_view>

namespace ferry::log {

enum class Level { kDebug, kInfo, kWarn, kError };

/// Messages below `level` are dropped. Default kInfo.
void set_level(Level level);

/// Also append every message to `path`. Throws Error{kIo} when it cannot be opened.
void set_file(const std::string& path);

/// Called before a message reaches the terminal, so that a live progress line can be cleared. Empty = none.
void set_before_message(void (*hook)());

void message(Level level, std::string_view text);

/// Appends a line to the file of set_file alone: for text that reaches the terminal in another way.
void to_file(std::string_view text);

template <class... Args>
void debug(fmt::format_string<Args...> format, Args&&... args) {
  message(Level::kDebug, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  message(Level::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void warn(fmt::format_string<Args...> format, Args&&... args) {
  message(Level::kWarn, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void error(fmt::format_string<Args...> format, Args&&... args) {
  message(Level::kError, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace ferry::log
