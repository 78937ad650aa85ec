// SPDX-License-Identifier: Apache-2.0
// The logger behind core/log.h: one spdlog logger with a terminal sink and, on request, a file sink.
#include "core/log.h"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>

#include "core/error.h"

namespace ferry::log {
namespace {

std::atomic<void (*)()> before_message_hook{nullptr};

spdlog::logger& file_logger() {
  static spdlog::logger instance("ferry_file");
  return instance;
}

spdlog::level::level_enum to_spdlog(Level level) {
  switch (level) {
    case Level::kDebug: return spdlog::level::debug;
    case Level::kInfo: return spdlog::level::info;
    case Level::kWarn: return spdlog::level::warn;
    case Level::kError: return spdlog::level::err;
  }
  return spdlog::level::info;
}

spdlog::logger& logger() {
  static spdlog::logger instance = [] {
    auto sink = std::make_shared<spdlog::sinks::stderr_color_sink_mt>();
    sink->set_pattern("%^%l%$: %v");
    return spdlog::logger("ferry", sink);
  }();
  return instance;
}

}  // namespace

void set_level(Level level) { logger().set_level(to_spdlog(level)); }

void set_file(const std::string& path) {
  try {
    auto sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path);
    sink->set_pattern("%Y-%m-%d %H:%M:%S.%e %l: %v");
    logger().sinks().push_back(sink);
    logger().flush_on(spdlog::level::info);
    file_logger().sinks().push_back(sink);
    file_logger().flush_on(spdlog::level::info);
  } catch (const spdlog::spdlog_ex& failure) {
    detail::throw_error(ErrorKind::kIo, fmt::format("log_file '{}' cannot be opened: {}", path, failure.what()));
  }
}

void set_before_message(void (*hook)()) { before_message_hook = hook; }

void message(Level level, std::string_view text) {
  if (!logger().should_log(to_spdlog(level))) return;
  if (auto* hook = before_message_hook.load()) hook();
  logger().log(to_spdlog(level), spdlog::string_view_t(text.data(), text.size()));
}

void to_file(std::string_view text) {
  if (!file_logger().sinks().empty()) file_logger().info("{}", text);
}

}  // namespace ferry::log
