// SPDX-License-Identifier: Apache-2.0
// The built-in vocabulary: one token per byte, so that any file is training data. Shown with printable_text.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"

namespace ferry {

constexpr std::int64_t kByteVocabularySize = 256;

inline std::vector<std::int32_t> encode_bytes(std::string_view text) {
  std::vector<std::int32_t> ids;
  ids.reserve(text.size());
  for (const char byte : text) ids.push_back(static_cast<unsigned char>(byte));
  return ids;
}

/// The inverse of encode_bytes. Throws Error{kShape} for an id outside of the vocabulary.
inline std::string decode_bytes(std::span<const std::int32_t> ids) {
  std::string text;
  text.reserve(ids.size());
  for (const std::int32_t id : ids) {
    FERRY_CHECK(id >= 0 && id < kByteVocabularySize, kShape,
                "token {} is no byte: the byte vocabulary has ids 0 to 255", id);
    text.push_back(static_cast<char>(id));
  }
  return text;
}

}  // namespace ferry
