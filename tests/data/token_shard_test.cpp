// SPDX-License-Identifier: Apache-2.0
#include "data/token_shard.h"

#include "io/file_test_helpers.h"

namespace ferry {
namespace {

using namespace test;

std::vector<std::uint32_t> all_tokens(const TokenShard& shard) {
  std::vector<std::uint32_t> tokens(static_cast<std::size_t>(shard.size()));
  shard.read(0, tokens);
  return tokens;
}

struct HeaderFields {
  std::string magic = "FERRYTOK";
  std::uint32_t version = 1;
  std::uint32_t token_bytes = 2;
  std::uint64_t vocab_size = 100;
  std::uint64_t n_tokens = 3;
};

std::string shard_bytes(const HeaderFields& header, const std::string& data) {
  return header.magic + bytes_of(std::vector{header.version, header.token_bytes}) +
         bytes_of(std::vector{header.vocab_size, header.n_tokens}) + data;
}

void check_shard_refused(const std::string& content, const std::vector<std::string>& parts) {
  const TemporaryFolder folder;
  write_file(folder / "a.bin", content);
  check_error(ErrorKind::kIo, parts, [&] { TokenShard({folder / "a.bin", TokenFormat::kShard}); });
  check_error(ErrorKind::kIo, {(folder / "a.bin").string()}, [&] {
    TokenShard({folder / "a.bin", TokenFormat::kShard});
  });
}

TEST_CASE("a written shard is read back, in both widths") {
  const TemporaryFolder folder;
  const std::vector<std::uint32_t> tokens{0, 7, 65535};
  write_token_shard(folder / "a", TokenWidth::kU16, 65536, tokens);
  write_token_shard(folder / "b", TokenWidth::kU32, 128256, tokens);
  const TokenShard narrow({folder / "a", TokenFormat::kShard});
  const TokenShard wide({folder / "b", TokenFormat::kShard});
  CHECK(std::filesystem::file_size(folder / "a") == 32 + 6);
  CHECK(std::filesystem::file_size(folder / "b") == 32 + 12);
  CHECK(all_tokens(narrow) == tokens);
  CHECK(all_tokens(wide) == tokens);
  CHECK(narrow.vocab_size() == 65536);
  CHECK(wide.vocab_size() == 128256);
}

TEST_CASE("a shard has the documented layout") {
  const TemporaryFolder folder;
  write_token_shard(folder / "a", TokenWidth::kU16, 100, std::vector<std::uint32_t>{1, 2, 99});
  CHECK(read_file(folder / "a") == shard_bytes({}, bytes_of(std::vector<std::uint16_t>{1, 2, 99})));
}

TEST_CASE("a shard longer than one piece of the writer is complete") {
  const TemporaryFolder folder;
  std::vector<std::uint32_t> tokens(200'001);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::uint32_t>(i % 50'000);
  write_token_shard(folder / "a", TokenWidth::kU16, 50'000, tokens);
  CHECK(all_tokens(TokenShard({folder / "a", TokenFormat::kShard})) == tokens);
}

TEST_CASE("raw files and bytes are read in their format") {
  const TemporaryFolder folder;
  write_file(folder / "a", bytes_of(std::vector<std::uint16_t>{1, 65535}));
  write_file(folder / "b", bytes_of(std::vector<std::uint32_t>{1, 128000}));
  write_file(folder / "c", "A\xff");
  CHECK(all_tokens(TokenShard({folder / "a", TokenFormat::kRawU16})) == std::vector<std::uint32_t>{1, 65535});
  CHECK(all_tokens(TokenShard({folder / "b", TokenFormat::kRawU32})) == std::vector<std::uint32_t>{1, 128000});
  const TokenShard bytes({folder / "c", TokenFormat::kBytes});
  CHECK(all_tokens(bytes) == std::vector<std::uint32_t>{65, 255});
  CHECK(bytes.vocab_size() == 256);
}

TEST_CASE("without a format, .txt is bytes and any other name a shard") {
  const TemporaryFolder folder;
  write_file(folder / "a.txt", "FERRYTEN");
  write_token_shard(folder / "a.bin", TokenWidth::kU16, 10, std::vector<std::uint32_t>{3});
  CHECK(TokenShard({folder / "a.txt"}).size() == 8);
  CHECK(all_tokens(TokenShard({folder / "a.bin"})) == std::vector<std::uint32_t>{3});
}

TEST_CASE("more than 2^31 tokens are addressed") {
  const TemporaryFolder folder;
  const std::int64_t n_tokens = (3LL << 30) + 1;
  write_file(folder / "a", shard_bytes({.n_tokens = static_cast<std::uint64_t>(n_tokens)}, ""));
  std::filesystem::resize_file(folder / "a", static_cast<std::uintmax_t>(32 + 2 * (n_tokens - 1)));  // sparse
  std::ofstream(folder / "a", std::ios::binary | std::ios::app) << bytes_of(std::vector<std::uint16_t>{77});
  const TokenShard shard({folder / "a", TokenFormat::kShard});
  CHECK(shard.size() == n_tokens);
  std::vector<std::uint32_t> tokens(2);
  shard.read(n_tokens - 2, tokens);
  CHECK(tokens == std::vector<std::uint32_t>{0, 77});
}

TEST_CASE("a mask beside a file says which tokens are targets") {
  const TemporaryFolder folder;
  write_file(folder / "a.txt", "abc");
  write_file(folder / "a.txt.mask", std::string("\0\1\2", 3));
  const TokenShard shard({folder / "a.txt", TokenFormat::kBytes});
  CHECK(shard.has_mask());
  CHECK_FALSE(shard.is_target(0));
  CHECK(shard.is_target(1));
  CHECK(shard.is_target(2));
}

TEST_CASE("a fingerprint tells other tokens and another mask, not another folder") {
  const TemporaryFolder folder;
  const auto fingerprint = [&](const std::string& name) { return TokenShard({folder / name}).fingerprint(); };
  write_file(folder / "a.txt", "abc");
  write_file(folder / "b.txt", "abc");
  const DataFingerprint bare = fingerprint("a.txt");
  CHECK(bare.tokens.size_bytes == 3);
  CHECK(bare.mask.empty());
  CHECK(fingerprint("b.txt") == bare);
  write_file(folder / "b.txt", "abd");
  CHECK(fingerprint("b.txt") != bare);
  write_file(folder / "a.txt.mask", std::string("\0\1\1", 3));
  const DataFingerprint masked = fingerprint("a.txt");
  CHECK(masked.tokens == bare.tokens);
  CHECK(masked != bare);
  write_file(folder / "a.txt.mask", std::string("\1\0\1", 3));
  CHECK(fingerprint("a.txt") != masked);
}

TEST_CASE("without a mask every token is a target") {
  const TemporaryFolder folder;
  write_file(folder / "a.txt", "abc");
  const TokenShard shard({folder / "a.txt", TokenFormat::kBytes});
  CHECK_FALSE(shard.has_mask());
  CHECK(shard.is_target(0));
}

TEST_CASE("a mask of another length is an error with both lengths") {
  const TemporaryFolder folder;
  write_file(folder / "a.txt", "abc");
  write_file(folder / "a.txt.mask", "12");
  check_error(ErrorKind::kIo, {"a.txt.mask: 2 bytes, expected one for each of the 3 tokens of a.txt"}, [&] {
    TokenShard({folder / "a.txt", TokenFormat::kBytes});
  });
}

TEST_CASE("an empty file is an error") {
  const TemporaryFolder folder;
  write_file(folder / "a.txt", "");
  check_error(ErrorKind::kIo, {"a.txt is empty"}, [&] { TokenShard({folder / "a.txt", TokenFormat::kBytes}); });
  check_shard_refused("", {"a.bin is empty"});
}

TEST_CASE("a missing file is an error") {
  check_error(ErrorKind::kIo, {"cannot open /absent"}, [] { TokenShard({"/absent", TokenFormat::kShard}); });
}

TEST_CASE("a file without the magic is an error that names the other formats") {
  check_shard_refused(std::string(64, 'x'),
                      {"does not begin with FERRYTOK", "need their data_format (u16, u32 or bytes)"});
  check_shard_refused("FERRY", {"does not begin with FERRYTOK"});
}

TEST_CASE("a shard is not read as raw ids or bytes") {
  const TemporaryFolder folder;
  write_token_shard(folder / "a.txt", TokenWidth::kU16, 10, std::vector<std::uint32_t>{3});
  for (const auto& [format, name] : {std::pair{TokenFormat::kAuto, "bytes"},
                                     {TokenFormat::kBytes, "bytes"},
                                     {TokenFormat::kRawU16, "u16"},
                                     {TokenFormat::kRawU32, "u32"}}) {
    check_error(ErrorKind::kIo, {"a.txt is a token shard", fmt::format("data_format is shard, not {}", name)},
                [&, kind = format] {
                  TokenShard({folder / "a.txt", kind});
                });
  }
}

TEST_CASE("a header cut short is an error") {
  check_shard_refused(shard_bytes({}, "").substr(0, 31), {"truncated: 31 bytes, the header alone takes 32"});
}

TEST_CASE("another version is an error with both versions") {
  check_shard_refused(shard_bytes({.version = 2}, "123456"), {"shard version 2, expected 1"});
}

TEST_CASE("another token width is an error") {
  for (const std::uint32_t width : {0U, 1U, 3U, 8U, 0xffffffffU}) {
    check_shard_refused(shard_bytes({.token_bytes = width}, "123456"), {"bytes per token, expected 2 or 4"});
  }
}

TEST_CASE("a vocabulary that the width cannot hold is an error") {
  check_shard_refused(shard_bytes({.vocab_size = 0}, "123456"), {"vocabulary size 0, expected 1 to 65536"});
  check_shard_refused(shard_bytes({.vocab_size = 65537}, "123456"), {"vocabulary size 65537, expected 1 to 65536"});
  check_shard_refused(shard_bytes({.token_bytes = 4, .vocab_size = ~0ULL}, "123456"), {"expected 1 to 4294967296"});
}

TEST_CASE("a shard without tokens is an error") {
  check_shard_refused(shard_bytes({.n_tokens = 0}, ""), {"holds no tokens"});
}

TEST_CASE("a truncated shard is an error with both sizes") {
  check_shard_refused(shard_bytes({}, "12345"), {"truncated: its header says 3 tokens of 2 bytes, 5 bytes follow"});
}

TEST_CASE("a shard with trailing bytes is an error") {
  check_shard_refused(shard_bytes({}, "1234567"),
                      {"trailing bytes: its header says 3 tokens of 2 bytes, 7 bytes follow"});
}

TEST_CASE("a count that overflows is an error") {
  check_shard_refused(shard_bytes({.n_tokens = (1ULL << 63) + 3}, "123456"), {"truncated"});
}

TEST_CASE("a raw file of odd size is an error") {
  const TemporaryFolder folder;
  write_file(folder / "a", "12345");
  check_error(ErrorKind::kIo, {"5 bytes, no multiple of 2, so it does not hold raw u16 tokens"}, [&] {
    TokenShard({folder / "a", TokenFormat::kRawU16});
  });
  check_error(ErrorKind::kIo, {"5 bytes, no multiple of 4, so it does not hold raw u32 tokens"}, [&] {
    TokenShard({folder / "a", TokenFormat::kRawU32});
  });
}

TEST_CASE("the writer refuses no tokens") {
  check_error(ErrorKind::kIo, {"a: no tokens to write"}, [] { write_token_shard("a", TokenWidth::kU16, 10, {}); });
}

TEST_CASE("the writer refuses a vocabulary that the width cannot hold") {
  const std::vector<std::uint32_t> tokens{1};
  check_error(ErrorKind::kIo, {"a: a vocabulary of 65537 does not fit 2-byte tokens"},
              [&] { write_token_shard("a", TokenWidth::kU16, 65537, tokens); });
  check_error(ErrorKind::kIo, {"a: a vocabulary of 0 does not fit"},
              [&] { write_token_shard("a", TokenWidth::kU16, 0, tokens); });
}

TEST_CASE("the writer refuses a token outside of the vocabulary, with its position") {
  const std::vector<std::uint32_t> tokens{1, 10};
  check_error(ErrorKind::kIo, {"a: token 10 at position 1 is outside of the vocabulary of 10"},
              [&] { write_token_shard("a", TokenWidth::kU16, 10, tokens); });
}

}  // namespace
}  // namespace ferry
