// SPDX-License-Identifier: Apache-2.0
// What token ids say: the bytes of a token, the text of a sequence, which ids begin and end one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/bpe_merges.h"
#include "data/tokenizer_file.h"

namespace ferry {

/// Ids that begin and end a text: of generation_config.json in a model's folder, else of config.json.
struct TextEnds {
  std::optional<std::int32_t> bos;
  std::vector<std::int32_t> eos;  // may be empty
};

/// Throws Error{kIo} with file and field.
TextEnds read_text_ends(const std::filesystem::path& folder);

/// A vocabulary of byte-pair tokens: one token per byte, or a Hugging Face tokenizer.json whose tokens are spelled by
/// bytes (Llama 3, GPT-2) or by characters with bytes as a fallback (SentencePiece: Llama 2).
class TokenText {
 public:
  /// The built-in vocabulary: id = byte, no special tokens.
  static TokenText of_bytes();

  /// tokenizer.json of `folder`, and its read_text_ends().
  /// Throws Error{kIo} with file and field: as read_tokenizer_file, or a decoder that is not of these two kinds.
  static TokenText load(const std::filesystem::path& folder);

  /// One more than the largest id. Not every id below it need have a token.
  std::int64_t size() const { return size_; }
  bool contains(std::int32_t id) const { return tokens_.contains(id); }
  /// Of one token: maybe no whole character, a leading space included; a special token's own name ("<s>"). Empty for an
  /// id without a token.
  std::string_view bytes_of(std::int32_t id) const;
  bool is_special(std::int32_t id) const;

  std::optional<std::int32_t> bos() const { return ends_.bos; }
  /// May be empty.
  const std::vector<std::int32_t>& eos() const { return ends_.eos; }
  bool is_eos(std::int32_t id) const;

  /// The first space of a text belongs to the encoding, not to the text.
  bool drops_first_space() const { return drops_first_space_; }
  /// Without special tokens and ids that have none. Bytes of a damaged sequence may be no UTF-8.
  std::string decode(std::span<const std::int32_t> ids) const;

  /// "" where encode() works, else why not.
  const std::string& why_not_encode() const { return why_not_encode_; }
  /// The ids that a text becomes, after those that the tokenizer puts first (BOS). Names of special tokens are text
  /// like any other. Throws Error{kConfig}: this vocabulary does not encode here, or lacks a byte of the text.
  std::vector<std::int32_t> encode(std::string_view text) const;

 private:
  struct Token {
    std::string bytes;
    bool is_special = false;
  };

  void add(std::int32_t id, Token token);
  void set_tokens(const TokenizerFile& file, const std::string& origin);
  void set_encoding(const TokenizerFile& file, const std::string& origin);
  std::int32_t id_named(const std::string& origin, const std::string& spelling) const;
  /// Spells it by its bytes where it has no token of its own.
  void append_character(const std::string& character, std::vector<std::int32_t>& ids) const;

  std::unordered_map<std::int32_t, Token> tokens_;
  std::int64_t size_ = 0;
  TextEnds ends_;
  bool drops_first_space_ = false;

  bool is_bytes_ = false;                                // the built-in vocabulary
  std::string why_not_encode_;                           // the rest is for encode() where this is empty
  std::unordered_map<std::string, std::int32_t> id_of_;  // by the spelling in the file
  std::vector<std::int32_t> first_ids_;                  // BOS
  BpeMerges merges_;
};

/// The vocabulary of a model in `folder`: tokenizer.json where there is one, bytes where `vocab_size` is 256, else
/// none.
std::optional<TokenText> find_token_text(const std::filesystem::path& folder, std::int64_t vocab_size);

/// Text of a sequence as it grows, token by token.
class TextDecoder {
 public:
  /// `text` outlives the decoder. `at_start`: the next token is the first of a text.
  explicit TextDecoder(const TokenText& text, bool at_start = true) : text_(text), at_start_(at_start) {}

  /// What the token adds; "" for special tokens. Valid as long as the vocabulary.
  std::string_view next(std::int32_t id);

 private:
  const TokenText& text_;
  bool at_start_;
};

}  // namespace ferry
