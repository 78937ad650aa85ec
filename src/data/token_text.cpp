// SPDX-License-Identifier: Apache-2.0
// Spellings of the two kinds of vocabularies turned into bytes, and back.
#include "data/token_text.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>

#include "core/error.h"
#include "data/byte_vocabulary.h"
#include "io/json_events.h"
#include "io/printable.h"

namespace ferry {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSpaceMark = "\u2581";  // how SentencePiece spells a space
constexpr std::size_t kLargestConfigBytes = std::size_t{1} << 20;
constexpr int kConfigDepth = 32;

enum class Spelling { kBytes, kCharacters };

/// A step of the given type anywhere in `section`.
bool has_step(const TokenizerFile& file, std::string_view section, std::string_view type) {
  return std::ranges::any_of(file.steps, [&](const auto& step) {
    return step.first.starts_with(section) && step.first.ends_with("/type") && step.second == type;
  });
}

bool has_value(const TokenizerFile& file, std::string_view section, std::string_view key, std::string_view value) {
  return std::ranges::any_of(file.steps, [&](const auto& step) {
    return step.first.starts_with(section) && step.first.ends_with(key) && step.second == value;
  });
}

Spelling spelling_of(const TokenizerFile& file, const std::string& origin) {
  if (has_step(file, "decoder", "ByteLevel")) return Spelling::kBytes;
  const bool marks_spaces = has_step(file, "decoder", "Metaspace")
                                ? has_value(file, "decoder", "/replacement", kSpaceMark)
                                : has_value(file, "decoder", "/String", kSpaceMark);
  FERRY_CHECK(
      marks_spaces, kIo,
      "{}: its decoder is neither ByteLevel nor one that turns '{}' into spaces: this tokenizer is not supported",
      origin, kSpaceMark);
  return Spelling::kCharacters;
}

/// Whether the decoder takes the first space of a text away.
bool strips_first_space(const TokenizerFile& file) {
  if (has_step(file, "decoder", "Metaspace")) return !has_value(file, "decoder", "/prepend_scheme", "never");
  return has_step(file, "decoder", "Strip") && !has_value(file, "decoder", "/start", "0");
}

std::size_t character_bytes(char first) {
  const auto bits = static_cast<unsigned char>(first);
  if (bits >= 0xf0) return 4;
  if (bits >= 0xe0) return 3;
  return bits >= 0xc0 ? 2 : 1;
}

/// The code points below 0x144 stand for bytes: a printable byte for itself, all others in order from 0x100.
/// Source: Radford et al. 2019 (GPT-2), `bytes_to_unicode` of the published encoder.
std::array<int, 0x144> bytes_of_code_points() {
  std::array<int, 0x144> bytes{};
  bytes.fill(-1);
  std::size_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool itself = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
    bytes[itself ? static_cast<std::size_t>(byte) : next++] = byte;
  }
  return bytes;
}

/// A spelling with a character that stands for no byte is text as it is, as in the tokenizers library.
std::string spelled_by_bytes(const std::string& spelling) {
  static const std::array<int, 0x144> kBytes = bytes_of_code_points();
  std::string bytes;
  for (std::size_t i = 0; i < spelling.size(); i += character_bytes(spelling[i])) {
    const auto lead = static_cast<unsigned char>(spelling[i]);
    unsigned code_point = lead;
    if (character_bytes(spelling[i]) == 2) {
      code_point = (lead & 0x1fU) << 6 | (static_cast<unsigned char>(spelling[i + 1]) & 0x3fU);
    }
    if (character_bytes(spelling[i]) > 2 || code_point >= kBytes.size() || kBytes[code_point] < 0) return spelling;
    bytes.push_back(static_cast<char>(kBytes[code_point]));
  }
  return bytes;
}

std::string byte_token(unsigned char byte) { return fmt::format("<0x{:02X}>", byte); }

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string result;
  for (std::size_t found = text.find(from); found != std::string_view::npos; found = text.find(from)) {
    result.append(text.substr(0, found)).append(to);
    text.remove_prefix(found + from.size());
  }
  return result.append(text);
}

std::string spelled_by_characters(const std::string& spelling, bool byte_fallback) {
  unsigned byte = 0;
  if (byte_fallback && spelling.size() == 6 && spelling.starts_with("<0x") && spelling.ends_with('>')) {
    const auto [end, failure] = std::from_chars(spelling.data() + 3, spelling.data() + 5, byte, 16);
    if (failure == std::errc() && end == spelling.data() + 5) return {static_cast<char>(byte)};
  }
  return replaced(spelling, kSpaceMark, " ");
}

/// What the encoder must do for encode() to do it likewise.
bool encodes_plainly(const TokenizerFile& file) {
  static const std::map<std::string, std::string> kNormalizer = {{"normalizer/type", "Sequence"},
                                                                 {"normalizer/normalizers/0/type", "Prepend"},
                                                                 {"normalizer/normalizers/0/prepend", "\u2581"},
                                                                 {"normalizer/normalizers/1/type", "Replace"},
                                                                 {"normalizer/normalizers/1/pattern/String", " "},
                                                                 {"normalizer/normalizers/1/content", "\u2581"}};
  std::map<std::string, std::string> steps;
  for (const auto& [path, value] : file.steps) {
    if (!path.starts_with("decoder") && value != "null") steps.emplace(path, value);
  }
  return steps == kNormalizer && !file.ignore_merges;
}

void set_id(const JsonEvent& event, const std::string& origin, std::vector<std::int32_t>& ids) {
  if (event.text == "null" || event.kind == JsonEvent::Kind::kArray) return;
  const bool fits = event.kind == JsonEvent::Kind::kInteger && event.integer >= 0 &&
                    event.integer <= std::numeric_limits<std::int32_t>::max();
  FERRY_CHECK(fits, kIo, "{}: {} is {}, expected an id or a list of ids", origin, printable_name(event.path[0]),
              describe(event));
  ids.push_back(static_cast<std::int32_t>(event.integer));
}

}  // namespace

// An id beyond the vocabulary ends nothing and does no harm.
TextEnds read_text_ends(const fs::path& folder) {
  std::vector<std::int32_t> bos;
  TextEnds ends;
  for (const char* name : {"generation_config.json", "config.json"}) {
    const fs::path path = folder / name;
    std::error_code failure;
    if (!fs::exists(path, failure)) continue;
    std::vector<std::int32_t> begins;
    std::vector<std::int32_t> eos;
    read_json_file(path, kLargestConfigBytes, kConfigDepth, [&](const JsonEvent& event) {
      if (event.path.empty() || event.path.size() > 2) return;
      if (event.path[0] == "bos_token_id") set_id(event, path.string(), begins);
      if (event.path[0] == "eos_token_id") set_id(event, path.string(), eos);
    });
    if (bos.empty()) bos = begins;
    if (ends.eos.empty()) ends.eos = eos;
  }
  if (!bos.empty()) ends.bos = bos.front();
  return ends;
}

TokenText TokenText::of_bytes() {
  TokenText text;
  for (std::int32_t id = 0; id < kByteVocabularySize; ++id) {
    text.add(id, {.bytes = decode_bytes(std::span(&id, 1)), .is_special = false});
  }
  text.is_bytes_ = true;
  return text;
}

TokenText TokenText::load(const fs::path& folder) {
  const fs::path path = folder / "tokenizer.json";
  const TokenizerFile file = read_tokenizer_file(path);
  TokenText text;
  text.set_tokens(file, path.string());
  text.ends_ = read_text_ends(folder);
  text.set_encoding(file, path.string());
  return text;
}

void TokenText::add(std::int32_t id, Token token) {
  size_ = std::max<std::int64_t>(size_, std::int64_t{id} + 1);
  tokens_[id] = std::move(token);
}

void TokenText::set_tokens(const TokenizerFile& file, const std::string& origin) {
  const Spelling spelling = spelling_of(file, origin);
  drops_first_space_ = spelling == Spelling::kCharacters && strips_first_space(file);
  const bool byte_fallback = has_step(file, "decoder", "ByteFallback") || file.byte_fallback;
  for (const auto& [id, token] : file.tokens) {
    std::string bytes = token.content;
    if (!token.is_added) {
      bytes = spelling == Spelling::kBytes ? spelled_by_bytes(bytes) : spelled_by_characters(bytes, byte_fallback);
    }
    add(id, {.bytes = std::move(bytes), .is_special = token.is_special});
  }
}

void TokenText::set_encoding(const TokenizerFile& file, const std::string& origin) {
  if (!encodes_plainly(file)) {
    why_not_encode_ =
        fmt::format("'{}' cuts texts by rules that are not built in: give token ids, made by its own tokenizer",
                    printable_name(origin));
    return;
  }
  for (const bool added : {false, true}) {  // an added token takes no spelling away
    for (const auto& [id, token] : file.tokens) {
      if (token.is_added == added) id_of_.try_emplace(token.content, id);
    }
  }
  for (const auto& [left, right] : file.merges) {
    merges_.add(id_named(origin, left), id_named(origin, right), id_named(origin, left + right));
  }
  for (const std::string& first : file.first_tokens) first_ids_.push_back(id_named(origin, first));
}

std::int32_t TokenText::id_named(const std::string& origin, const std::string& spelling) const {
  const auto found = id_of_.find(spelling);
  FERRY_CHECK(found != id_of_.end(), kIo, "{}: the token '{}' of a merge or template is not in its vocabulary", origin,
              printable_name(spelling));
  return found->second;
}

std::string_view TokenText::bytes_of(std::int32_t id) const {
  const auto found = tokens_.find(id);
  return found == tokens_.end() ? std::string_view() : found->second.bytes;
}

bool TokenText::is_special(std::int32_t id) const {
  const auto found = tokens_.find(id);
  return found != tokens_.end() && found->second.is_special;
}

bool TokenText::is_eos(std::int32_t id) const { return std::ranges::count(ends_.eos, id) > 0; }

std::string TokenText::decode(std::span<const std::int32_t> ids) const {
  TextDecoder decoder(*this);
  std::string text;
  for (const std::int32_t id : ids) text += decoder.next(id);
  return text;
}

void TokenText::append_character(const std::string& character, std::vector<std::int32_t>& ids) const {
  if (const auto found = id_of_.find(character); found != id_of_.end()) return ids.push_back(found->second);
  for (const char byte : character) {
    const auto found = id_of_.find(byte_token(static_cast<unsigned char>(byte)));
    FERRY_CHECK(found != id_of_.end(), kConfig, "the vocabulary has no token for '{}'", printable_name(character));
    ids.push_back(found->second);
  }
}

std::vector<std::int32_t> TokenText::encode(std::string_view text) const {
  if (is_bytes_) return encode_bytes(text);
  FERRY_CHECK(why_not_encode_.empty(), kConfig, "{}", why_not_encode_);
  std::string spelled;
  if (!text.empty()) spelled.append(kSpaceMark).append(replaced(text, " ", kSpaceMark));
  std::vector<std::int32_t> characters;
  for (std::size_t i = 0; i < spelled.size();) {
    std::size_t length = 1;  // a byte that does not continue the character, as in damaged UTF-8, begins another
    while (length < character_bytes(spelled[i]) && (spelled[i + length] & 0xc0) == 0x80) ++length;
    append_character(spelled.substr(i, length), characters);
    i += length;
  }
  std::vector<std::int32_t> ids = first_ids_;
  std::ranges::copy(merges_.apply(characters), std::back_inserter(ids));
  return ids;
}

std::optional<TokenText> find_token_text(const fs::path& folder, std::int64_t vocab_size) {
  std::error_code failure;
  if (fs::exists(folder / "tokenizer.json", failure)) return TokenText::load(folder);
  if (vocab_size == kByteVocabularySize) return TokenText::of_bytes();
  return std::nullopt;
}

std::string_view TextDecoder::next(std::int32_t id) {
  if (text_.is_special(id)) return {};
  std::string_view bytes = text_.bytes_of(id);
  if (at_start_ && text_.drops_first_space() && bytes.starts_with(' ')) bytes.remove_prefix(1);
  at_start_ = at_start_ && !text_.contains(id);
  return bytes;
}

}  // namespace ferry
