// SPDX-License-Identifier: Apache-2.0
// Small text files and text safe to print.
#include "config/text_file.h"

#include <cstdint>
#include <fstream>
#include <system_error>

#include "core/error.h"

namespace ferry {
namespace {

// Length of the well-formed UTF-8 sequence at the start of `bytes`, 0 when there is none (Unicode 15, table 3-7).
std::size_t utf8_length(std::string_view bytes) {
  const auto at = [&](std::size_t i) { return i < bytes.size() ? static_cast<std::uint8_t>(bytes[i]) : 0U; };
  const auto tail = [&](std::size_t i) { return (at(i) & 0xc0U) == 0x80U; };
  const unsigned first = at(0);
  if (first < 0x80) return 1;
  if (first >= 0xc2 && first <= 0xdf) return tail(1) ? 2 : 0;
  if (first >= 0xe0 && first <= 0xef) {
    const bool overlong = first == 0xe0 && at(1) < 0xa0;
    const bool surrogate = first == 0xed && at(1) > 0x9f;
    return !overlong && !surrogate && tail(1) && tail(2) ? 3 : 0;
  }
  if (first >= 0xf0 && first <= 0xf4) {
    const bool overlong = first == 0xf0 && at(1) < 0x90;
    const bool too_high = first == 0xf4 && at(1) > 0x8f;
    return !overlong && !too_high && tail(1) && tail(2) && tail(3) ? 4 : 0;
  }
  return 0;
}

}  // namespace

std::string read_text_file(const std::filesystem::path& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  FERRY_CHECK(std::filesystem::exists(status), kIo, "{}: no such file", path.string());
  FERRY_CHECK(std::filesystem::is_regular_file(status), kIo, "{}: not a regular file", path.string());
  std::ifstream stream(path, std::ios::binary);
  FERRY_CHECK(stream.is_open(), kIo, "{}: cannot be opened, check its permissions", path.string());
  std::string text(kMaxTextFileBytes + 1, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  FERRY_CHECK(!stream.bad(), kIo, "{}: cannot be read", path.string());
  text.resize(static_cast<std::size_t>(stream.gcount()));
  FERRY_CHECK(text.size() <= kMaxTextFileBytes, kIo, "{}: larger than {} bytes, which no configuration is",
              path.string(), kMaxTextFileBytes);
  return text;
}

bool is_text(std::string_view bytes) {
  while (!bytes.empty()) {
    const std::size_t length = utf8_length(bytes);
    if (length == 0 || bytes[0] == '\0') return false;
    bytes.remove_prefix(length);
  }
  return true;
}

std::string shown(std::string_view text) {
  constexpr std::size_t kMaxShown = 80;
  std::string out;
  while (!text.empty()) {
    if (out.size() >= kMaxShown) return out + "...";
    const std::size_t length = utf8_length(text);
    const bool printable = length > 1 || (length == 1 && text[0] >= 0x20 && text[0] != 0x7f);
    if (printable) {
      out += text.substr(0, length);
    } else {
      out += '?';
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return out;
}

}  // namespace ferry
