// SPDX-License-Identifier: Apache-2.0
// UTF-8 validation and escaping.
#include "io/printable.h"

#include <fmt/core.h>

#include <algorithm>

namespace ferry {
namespace {

unsigned byte_at(std::string_view bytes, std::size_t index) { return static_cast<unsigned char>(bytes[index]); }

// Bytes of the printable character at `begin`: 0 for control characters and for anything that is not well-formed UTF-8
// (Unicode 15, table 3-7).
std::size_t character_length(std::string_view bytes, std::size_t begin) {
  const unsigned lead = byte_at(bytes, begin);
  if (lead < 0x80) return lead >= 0x20 && lead != 0x7f ? 1 : 0;
  const std::size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || bytes.size() - begin < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte_at(bytes, begin + i) & 0xc0U) != 0x80) return 0;
  }
  const unsigned second = byte_at(bytes, begin + 1);
  const bool c1_control = lead == 0xc2 && second < 0xa0;
  const bool overlong = (lead == 0xe0 && second < 0xa0) || (lead == 0xf0 && second < 0x90);
  const bool surrogate_or_beyond = (lead == 0xed && second > 0x9f) || (lead == 0xf4 && second > 0x8f);
  return c1_control || overlong || surrogate_or_beyond ? 0 : length;
}

std::string escape(std::string_view bytes, bool keep_layout) {
  std::string text;
  text.reserve(bytes.size());
  for (std::size_t i = 0; i < bytes.size();) {
    const char byte = bytes[i];
    const std::size_t length = character_length(bytes, i);
    if (byte == '\\') {
      text += "\\\\";
    } else if (length > 0 || (keep_layout && (byte == '\n' || byte == '\t'))) {
      text += bytes.substr(i, std::max<std::size_t>(length, 1));
    } else {
      text += fmt::format("\\x{:02x}", byte_at(bytes, i));
    }
    i += std::max<std::size_t>(length, 1);
  }
  return text;
}

}  // namespace

std::string printable_text(std::string_view bytes) { return escape(bytes, true); }

std::string printable_name(std::string_view bytes) {
  constexpr std::size_t kLongest = 120;
  const std::string shown = escape(bytes.substr(0, kLongest), false);
  return bytes.size() > kLongest ? fmt::format("{}... ({} bytes)", shown, bytes.size()) : shown;
}

}  // namespace ferry
