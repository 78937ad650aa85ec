// SPDX-License-Identifier: Apache-2.0
// The one exception type of ferry, and the two families of checks.
#pragma once

#include <fmt/core.h>

#include <stdexcept>
#include <string>

namespace ferry {

enum class ErrorKind { kConfig, kShape, kDType, kIo, kMemory, kDevice };

/// "config", "shape", ...
const char* to_string(ErrorKind kind);

/// A fault of the user, a caller or the machine. The message says what, got, expected, what to try.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

namespace detail {
[[noreturn]] void throw_error(ErrorKind kind, const std::string& message);
[[noreturn]] void assertion_failed(const char* condition, const char* file, int line);
}  // namespace detail

}  // namespace ferry

/// The caller's or the user's fault: always on. FERRY_CHECK(ok, kShape, "x has {} rows, weight {}", a, b);
#define FERRY_CHECK(condition, kind, ...)                                                 \
  do {                                                                                    \
    if (!(condition)) [[unlikely]]                                                        \
      ::ferry::detail::throw_error(::ferry::ErrorKind::kind, ::fmt::format(__VA_ARGS__)); \
  } while (false)

/// Our own bug, never reachable by input: always on, throws std::logic_error with file and line.
#define FERRY_ASSERT(condition)                                          \
  do {                                                                   \
    if (!(condition)) [[unlikely]]                                       \
      ::ferry::detail::assertion_failed(#condition, __FILE__, __LINE__); \
  } while (false)
