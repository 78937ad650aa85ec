// SPDX-License-Identifier: Apache-2.0
#include "io/printable.h"

#include "catch.h"

namespace ferry {
namespace {

// The inverse of printable_text: what makes it lossless.
std::string unescape(const std::string& text) {
  std::string bytes;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\') {
      bytes += text[i];
    } else if (text[i + 1] == '\\') {
      bytes += text[++i];
    } else {
      bytes += static_cast<char>(std::stoi(text.substr(i + 2, 2), nullptr, 16));
      i += 3;
    }
  }
  return bytes;
}

TEST_CASE("text keeps its letters, newlines and accents") {
  CHECK(printable_text("a b\n\tc") == "a b\n\tc");
  CHECK(printable_text("caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80") == "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80");
}

TEST_CASE("control characters and malformed UTF-8 are escaped") {
  CHECK(printable_text("\x1b[2J") == "\\x1b[2J");
  CHECK(printable_text(std::string_view("\0\x7f", 2)) == "\\x00\\x7f");
  CHECK(printable_text("\xc2\x9b") == "\\xc2\\x9b");                    // a control character in UTF-8
  CHECK(printable_text("\xe2\x82") == "\\xe2\\x82");                    // cut short
  CHECK(printable_text("\xc0\xaf") == "\\xc0\\xaf");                    // overlong
  CHECK(printable_text("\xe0\x80\xaf") == "\\xe0\\x80\\xaf");           // overlong
  CHECK(printable_text("\xed\xa0\x80") == "\\xed\\xa0\\x80");           // surrogate
  CHECK(printable_text("\xf4\x90\x80\x80") == "\\xf4\\x90\\x80\\x80");  // beyond Unicode
  CHECK(printable_text("\xff") == "\\xff");
}

TEST_CASE("printable text is lossless") {
  std::string bytes;
  for (int first = 0; first < 256; ++first) {
    for (int second = 0; second < 256; second += 5) bytes += {static_cast<char>(first), static_cast<char>(second)};
  }
  CHECK(unescape(printable_text(bytes)) == bytes);
  CHECK(unescape(printable_text("\\x41 \\")) == "\\x41 \\");
}

TEST_CASE("names stay on one line and short") {
  CHECK(printable_name("a\nb") == "a\\x0ab");
  const std::string shown = printable_name(std::string(1000, 'x'));
  CHECK(shown.size() < 150);
  CHECK(shown.find("1000 bytes") != std::string::npos);
}

}  // namespace
}  // namespace ferry
