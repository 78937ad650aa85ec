// SPDX-License-Identifier: Apache-2.0
#include "config/text_file.h"

#include "catch.h"
#include "temp_file.h"
#include "thrown.h"

namespace ferry {
namespace {

TEST_CASE("a text file is read whole") {
  const TempFolder folder;
  CHECK(read_text_file(folder.write("a", "one\ntwo")) == "one\ntwo");
  CHECK(read_text_file(folder.write("empty", "")).empty());
  CHECK(read_text_file(folder.write("full", std::string(kMaxTextFileBytes, 'x'))).size() == kMaxTextFileBytes);
}

TEST_CASE("a missing text file is named") {
  CHECK(thrown([] { read_text_file("no/such/file"); }) == "io: no/such/file: no such file");
}

TEST_CASE("a folder or a device in place of a text file is refused") {
  CHECK(thrown([] { read_text_file("/"); }) == "io: /: not a regular file");
  CHECK(thrown([] { read_text_file("/dev/zero"); }) == "io: /dev/zero: not a regular file");
}

TEST_CASE("a text file that is too large is refused") {
  const TempFolder folder;
  const auto path = folder.write("big", std::string(kMaxTextFileBytes + 1, 'x'));
  CHECK(thrown([&] { read_text_file(path); }) ==
        "io: " + path.string() + ": larger than 1048576 bytes, which no configuration is");
}

TEST_CASE("text is well-formed UTF-8 without NUL") {
  CHECK(is_text(""));
  CHECK(is_text("plain"));
  CHECK(is_text("\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80"));
  CHECK_FALSE(is_text(std::string_view("a\0b", 3)));
  CHECK_FALSE(is_text("\xff"));
  CHECK_FALSE(is_text("\xc3"));              // cut short
  CHECK_FALSE(is_text("\xc0\x80"));          // overlong
  CHECK_FALSE(is_text("\xe0\x80\x80"));      // overlong
  CHECK_FALSE(is_text("\xed\xa0\x80"));      // surrogate
  CHECK_FALSE(is_text("\xf4\x90\x80\x80"));  // beyond U+10FFFF
}

TEST_CASE("shown text is short and printable") {
  CHECK(shown("abc") == "abc");
  CHECK(shown("a\nb\x1b[0m") == "a?b?[0m");
  CHECK(shown("\xc3\xa9\xff") == "\xc3\xa9?");
  CHECK(shown(std::string(1000, 'x')) == std::string(80, 'x') + "...");
}

}  // namespace
}  // namespace ferry
