// SPDX-License-Identifier: Apache-2.0
// Untrusted JSON read as a stream of events: no document in memory, bounded depth, no duplicate keys.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace ferry {

/// One value, or the start of an object or array.
struct JsonEvent {
  enum class Kind { kObject, kArray, kString, kInteger, kOther };

  Kind kind = Kind::kOther;
  std::span<const std::string> path;  // keys from the root to this value; an array element's key is its index
  std::string_view text;              // the string, or the number or word as written
  std::int64_t integer = 0;           // kInteger; a number beyond int64 is kOther
};

/// Calls `on_event` for each value in document order. Strings are valid UTF-8.
/// Throws Error{kIo} that begins with `origin`: malformed JSON, nesting beyond `max_depth`, a duplicate key, bytes
/// after the end. What `on_event` throws passes through.
void read_json(std::string_view text, const std::string& origin, int max_depth,
               const std::function<void(const JsonEvent&)>& on_event);

/// read_json of a whole file. Throws Error{kIo}, for one larger than `largest_bytes` too, which is not read.
void read_json_file(const std::filesystem::path& path, std::size_t largest_bytes, int max_depth,
                    const std::function<void(const JsonEvent&)>& on_event);

/// "an object", "an array", "the string 'x'", "1.5"
std::string describe(const JsonEvent& event);

}  // namespace ferry
