// SPDX-License-Identifier: Apache-2.0
#include "io/checksum.h"

#include <span>
#include <string>

#include "catch.h"
#include "io/atomic_file.h"
#include "temp_file.h"
#include "thrown.h"

using namespace ferry;

namespace {

std::string checksum_of(const std::string& text, std::size_t piece) {
  Checksum checksum;
  for (std::size_t i = 0; i < text.size(); i += piece) {
    checksum.add(std::as_bytes(std::span(text).subspan(i, std::min(piece, text.size() - i))));
  }
  return checksum.text();
}

}  // namespace

TEST_CASE("a checksum is what xxh128sum prints") {
  CHECK(checksum_of("", 1) == "99aa06d3014798d86001c324468d497f");
  CHECK(checksum_of("abc", 3) == "06b05ab6733a618578af5f94892f3950");
}

TEST_CASE("a checksum does not depend on how the bytes come") {
  std::string text;
  for (int i = 0; i < 5000; ++i) text.push_back(static_cast<char>(i * 7));
  const std::string whole = checksum_of(text, text.size());
  for (const std::size_t piece : {1U, 3U, 255U, 256U, 4096U}) CHECK(checksum_of(text, piece) == whole);
  text[4321] = static_cast<char>(text[4321] ^ 1);
  CHECK(checksum_of(text, text.size()) != whole);
}

TEST_CASE("a sampled digest of up to 1 MiB is of all bytes") {
  std::string text(1 << 20, 'a');
  for (const std::size_t size : {std::size_t{0}, std::size_t{5}, text.size()}) {
    const std::string part = text.substr(0, size);
    CHECK(sampled_digest(std::as_bytes(std::span(part))).checksum == checksum_of(part, 4096));
  }
  CHECK(sampled_digest(std::as_bytes(std::span(text))).size_bytes == 1 << 20);
}

TEST_CASE("a sampled digest sees both ends, and every change of more than a 63rd") {
  for (const std::size_t size : {(std::size_t{1} << 20) + 1, std::size_t{5'000'003}}) {
    std::string text(size, 'a');
    const auto digest = [&] { return sampled_digest(std::as_bytes(std::span(text))); };
    const FileDigest whole = digest();
    for (const std::size_t at : {std::size_t{0}, size - 1}) {
      text[at] = 'b';
      CHECK(digest() != whole);
      text[at] = 'a';
    }
    const std::size_t run = size / 63 + 1;
    for (std::size_t at = 0; at + run <= size; at += run / 3) {
      text.replace(at, run, run, 'b');
      CHECK(digest() != whole);
      text.replace(at, run, run, 'a');
    }
    CHECK(digest() == whole);
    text.push_back('a');
    CHECK(digest() != whole);
  }
}

TEST_CASE("a file knows the digest of what was written") {
  const TempFolder folder;
  const FileDigest written = write_file_atomically(folder.path() / "a.txt", "some bytes");
  CHECK(written.size_bytes == 10);
  CHECK(digest_of(folder.path() / "a.txt") == written);
  CHECK(digest_of(folder.write("b.txt", "some byteS")).checksum != written.checksum);
  CHECK(digest_of(folder.write("empty", "")).size_bytes == 0);
  CHECK(thrown([&] { digest_of(folder.path() / "absent"); }).starts_with("io: cannot open "));
}
