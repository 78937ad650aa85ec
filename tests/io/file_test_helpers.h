// SPDX-License-Identifier: Apache-2.0
// Scratch folders, whole-file reads and writes, and checks of error messages.
#pragma once

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "catch.h"
#include "core/error.h"
#include "temp_file.h"
#include "thrown.h"

namespace ferry::test {

/// A folder of the test's own, with short ways to name and count its entries.
class TemporaryFolder : public TempFolder {
 public:
  std::filesystem::path operator/(std::string_view name) const { return path() / name; }

  /// Hidden entries included.
  std::size_t n_entries() const {
    return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(path()), {}));
  }
};

inline void write_file(const std::filesystem::path& path, std::string_view content) {
  std::ofstream file(path, std::ios::binary);
  file.write(content.data(), static_cast<std::streamsize>(content.size()));
  REQUIRE(file.good());
}

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  REQUIRE(file.good());
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The bytes of plain values, in memory order.
template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

/// Checks that `action` throws an Error of `kind` whose message holds each of `parts`.
inline void check_error(ErrorKind kind, const std::vector<std::string>& parts, const std::function<void()>& action) {
  const std::string message = thrown(action);
  INFO("expected: " << to_string(kind) << ": ..." << parts.front() << "...; got: " << message);
  CHECK(message.starts_with(to_string(kind) + std::string(": ")));
  for (const std::string& part : parts) {
    INFO("missing: " << part);
    CHECK(message.find(part) != std::string::npos);
  }
}

}  // namespace ferry::test
