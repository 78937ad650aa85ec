// SPDX-License-Identifier: Apache-2.0
// Checks and access of token files; every byte is untrusted.
#include "data/token_shard.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <string>
#include <vector>

#include "core/error.h"
#include "data/byte_vocabulary.h"
#include "io/atomic_file.h"

namespace ferry {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are little-endian");

constexpr std::array<char, 8> kMagic{'F', 'E', 'R', 'R', 'Y', 'T', 'O', 'K'};
constexpr std::uint32_t kVersion = 1;

struct Header {
  std::array<char, 8> magic = kMagic;
  std::uint32_t version = kVersion;
  std::uint32_t token_bytes = 0;
  std::uint64_t vocab_size = 0;
  std::uint64_t n_tokens = 0;
};
static_assert(sizeof(Header) == 32);

constexpr std::uint64_t largest_vocab(std::uint32_t token_bytes) { return std::uint64_t{1} << (8 * token_bytes); }

template <class Stored>
void widen(const std::byte* source, std::span<std::uint32_t> out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    Stored token;
    std::memcpy(&token, source + i * sizeof(Stored), sizeof(Stored));
    out[i] = token;
  }
}

template <class Stored>
void write_tokens(AtomicFile& file, std::span<const std::uint32_t> tokens) {
  constexpr std::size_t kPieceTokens = 1U << 16;  // bounds the copy, not the file
  std::vector<Stored> piece;
  while (!tokens.empty()) {
    const auto head = tokens.first(std::min(kPieceTokens, tokens.size()));
    piece.resize(head.size());
    std::ranges::transform(head, piece.begin(), [](std::uint32_t token) { return static_cast<Stored>(token); });
    file.write(std::as_bytes(std::span(piece)));
    tokens = tokens.subspan(head.size());
  }
}

}  // namespace

TokenFormat format_of(const TokenSource& source) {
  if (source.format != TokenFormat::kAuto) return source.format;
  return source.path.extension() == ".txt" ? TokenFormat::kBytes : TokenFormat::kShard;
}

TokenShard::TokenShard(const TokenSource& source) : tokens_file_(source.path) {
  FERRY_CHECK(!tokens_file_.bytes().empty(), kIo, "{} is empty", path().string());
  switch (format_of(source)) {
    case TokenFormat::kAuto: break;  // resolved
    case TokenFormat::kShard: read_header(); break;
    case TokenFormat::kRawU16: set_raw(2, "u16"); break;
    case TokenFormat::kRawU32: set_raw(4, "u32"); break;
    case TokenFormat::kBytes:
      set_raw(1, "bytes");
      vocab_size_ = kByteVocabularySize;
      break;
  }
  open_mask();
}

void TokenShard::read_header() {
  const std::string file = path().string();
  const auto bytes = tokens_file_.bytes();
  Header header;
  FERRY_CHECK(
      has_magic(), kIo,
      "{} is no token shard: it does not begin with FERRYTOK; other files need their data_format (u16, u32 or bytes)",
      file);
  FERRY_CHECK(bytes.size() >= sizeof(header), kIo, "{}: truncated: {} bytes, the header alone takes {}", file,
              bytes.size(), sizeof(header));
  std::memcpy(&header, bytes.data(), sizeof(header));
  FERRY_CHECK(header.version == kVersion, kIo, "{}: shard version {}, expected {}", file, header.version, kVersion);
  FERRY_CHECK(header.token_bytes == 2 || header.token_bytes == 4, kIo, "{}: {} bytes per token, expected 2 or 4", file,
              header.token_bytes);
  FERRY_CHECK(header.vocab_size > 0 && header.vocab_size <= largest_vocab(header.token_bytes), kIo,
              "{}: vocabulary size {}, expected 1 to {}", file, header.vocab_size, largest_vocab(header.token_bytes));
  FERRY_CHECK(header.n_tokens > 0, kIo, "{} holds no tokens", file);
  const std::uint64_t data_bytes = bytes.size() - sizeof(header);
  const bool matches = data_bytes % header.token_bytes == 0 && data_bytes / header.token_bytes == header.n_tokens;
  FERRY_CHECK(matches, kIo, "{}: {}: its header says {} tokens of {} bytes, {} bytes follow", file,
              data_bytes / header.token_bytes < header.n_tokens ? "truncated" : "trailing bytes", header.n_tokens,
              header.token_bytes, data_bytes);
  token_bytes_ = static_cast<int>(header.token_bytes);
  vocab_size_ = static_cast<std::int64_t>(header.vocab_size);
  n_tokens_ = static_cast<std::int64_t>(header.n_tokens);
  data_offset_bytes_ = sizeof(header);
}

bool TokenShard::has_magic() const {
  const auto bytes = tokens_file_.bytes();
  return bytes.size() >= kMagic.size() && std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) == 0;
}

void TokenShard::set_raw(int token_bytes, std::string_view format_name) {
  FERRY_CHECK(!has_magic(), kIo, "{} is a token shard: it begins with FERRYTOK; its data_format is shard, not {}",
              path().string(), format_name);
  const auto size_bytes = static_cast<std::int64_t>(tokens_file_.bytes().size());
  FERRY_CHECK(size_bytes % token_bytes == 0, kIo, "{}: {} bytes, no multiple of {}, so it does not hold raw {} tokens",
              path().string(), size_bytes, token_bytes, format_name);
  token_bytes_ = token_bytes;
  n_tokens_ = size_bytes / token_bytes;
}

void TokenShard::open_mask() {
  std::filesystem::path mask = path();
  mask += ".mask";
  std::error_code failure;
  if (!std::filesystem::exists(mask, failure)) return;
  mask_file_.emplace(mask);
  FERRY_CHECK(mask_file_->bytes().size() == static_cast<std::size_t>(n_tokens_), kIo,
              "{}: {} bytes, expected one for each of the {} tokens of {}", mask.string(), mask_file_->bytes().size(),
              n_tokens_, path().filename().string());
}

void TokenShard::read(std::int64_t first, std::span<std::uint32_t> out) const {
  FERRY_ASSERT(first >= 0 && first <= n_tokens_ - static_cast<std::int64_t>(out.size()));
  const std::byte* source = tokens_file_.bytes().data() + data_offset_bytes_ + first * token_bytes_;
  switch (token_bytes_) {
    case 1: widen<std::uint8_t>(source, out); break;
    case 2: widen<std::uint16_t>(source, out); break;
    default: widen<std::uint32_t>(source, out); break;
  }
}

bool TokenShard::is_target(std::int64_t index) const {
  FERRY_ASSERT(index >= 0 && index < n_tokens_);
  return !mask_file_ || mask_file_->bytes()[static_cast<std::size_t>(index)] != std::byte{0};
}

DataFingerprint TokenShard::fingerprint() const {
  return {sampled_digest(tokens_file_.bytes()), mask_file_ ? sampled_digest(mask_file_->bytes()).checksum : ""};
}

bool TokenShard::any_target(std::int64_t first, std::int64_t n) const {
  FERRY_ASSERT(first >= 0 && n >= 1 && first <= n_tokens_ - n);
  if (!mask_file_) return true;
  const auto mask = mask_file_->bytes().subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(n));
  return std::ranges::any_of(mask, [](std::byte value) { return value != std::byte{0}; });
}

void write_token_shard(const std::filesystem::path& path, TokenWidth width, std::int64_t vocab_size,
                       std::span<const std::uint32_t> tokens) {
  const auto token_bytes = static_cast<std::uint32_t>(width);
  const auto vocab = static_cast<std::uint64_t>(vocab_size);
  FERRY_CHECK(vocab_size > 0 && vocab <= largest_vocab(token_bytes), kIo,
              "{}: a vocabulary of {} does not fit {}-byte tokens", path.string(), vocab_size, token_bytes);
  FERRY_CHECK(!tokens.empty(), kIo, "{}: no tokens to write", path.string());
  const auto bad = std::ranges::find_if(tokens, [vocab](std::uint32_t token) { return token >= vocab; });
  FERRY_CHECK(bad == tokens.end(), kIo, "{}: token {} at position {} is outside of the vocabulary of {}", path.string(),
              *bad, bad - tokens.begin(), vocab_size);
  const Header header{.token_bytes = token_bytes, .vocab_size = vocab, .n_tokens = tokens.size()};
  AtomicFile file(path);
  file.write(std::as_bytes(std::span(&header, 1)));
  width == TokenWidth::kU16 ? write_tokens<std::uint16_t>(file, tokens) : write_tokens<std::uint32_t>(file, tokens);
  file.commit();
}

}  // namespace ferry
