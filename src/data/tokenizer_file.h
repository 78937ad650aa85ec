// SPDX-License-Identifier: Apache-2.0
// A Hugging Face tokenizer.json as written: its tokens, merges and steps, checked but not yet given a meaning.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace ferry {

struct TokenizerFile {
  struct Token {
    std::string content;
    bool is_added = false;    // its content is text as it stands, whatever the vocabulary's spelling is
    bool is_special = false;  // no text: BOS, EOS and the like
  };

  std::unordered_map<std::int32_t, Token> tokens;
  std::vector<std::pair<std::string, std::string>> merges;  // the first goes before all others
  /// Values of the normalizer, pre_tokenizer and decoder by their path: "decoder/type" -> "ByteLevel".
  std::map<std::string, std::string> steps;
  bool byte_fallback = false;
  bool ignore_merges = false;
  std::vector<std::string> first_tokens;  // contents that the post-processor puts before a text
};

/// Throws Error{kIo} with the field: unreadable, larger than 256 MiB, not JSON, wrong types, another model than BPE, an
/// id that is negative, beyond int32 or used twice, a token without id.
TokenizerFile read_tokenizer_file(const std::filesystem::path& path);

}  // namespace ferry
