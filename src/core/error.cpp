// SPDX-License-Identifier: Apache-2.0
// Throwing, kept out of line so that a check costs one branch.
#include "core/error.h"

namespace ferry {

const char* to_string(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kConfig: return "config";
    case ErrorKind::kShape: return "shape";
    case ErrorKind::kDType: return "dtype";
    case ErrorKind::kIo: return "io";
    case ErrorKind::kMemory: return "memory";
    case ErrorKind::kDevice: return "device";
  }
  return "unknown";
}

namespace detail {

void throw_error(ErrorKind kind, const std::string& message) { throw Error(kind, message); }

void assertion_failed(const char* condition, const char* file, int line) {
  throw std::logic_error(fmt::format("internal error, please report it: {} is false at {}:{}", condition, file, line));
}

}  // namespace detail
}  // namespace ferry
