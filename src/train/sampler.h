// SPDX-License-Identifier: Apache-2.0
// Picks the next token from logits, and turns a model over bytes into text.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/model_config.h"
#include "core/rng.h"
#include "data/byte_vocabulary.h"

namespace ferry {

/// softmax(logits / temperature) in f64; temperature 0 is greedy, ties go to the lowest id.
/// Draw i depends on (seed, i) alone.
class Sampler {
 public:
  /// Throws Error{kConfig} for a negative or non-finite temperature.
  Sampler(double temperature, std::uint64_t seed);

  /// Throws Error{kConfig} for logits that are empty or hold NaN.
  std::int32_t sample(std::span<const float> logits);

 private:
  double uniform();

  double temperature_;
  CounterRng rng_;
  std::uint64_t n_draws_ = 0;
};

inline bool has_byte_vocabulary(const ModelConfig& config) { return config.vocab_size == kByteVocabularySize; }

/// Throws Error{kConfig} unless the vocabulary is bytes; `what` names the caller ("generate").
void require_byte_vocabulary(const ModelConfig& config, std::string_view what);

/// Logits of the token after `ids`; Engine::next_logits.
using NextLogits = std::function<std::vector<float>(std::span<const std::int32_t> ids)>;

struct ByteTextOptions {
  std::string prompt;         // empty: a newline
  std::int64_t n_tokens = 0;  // bytes to add
  std::int64_t context = 1;   // the model sees the last `context` bytes
  double temperature = 0.6;
  std::uint64_t seed = 0;
};

/// Calls on_byte for each new byte as soon as it is known; stops early when it returns false.
void generate_bytes(const NextLogits& next_logits, const ByteTextOptions& options,
                    const std::function<bool(char)>& on_byte);

/// The words of a text: runs of ASCII letters, lower-cased.
std::vector<std::string> split_words(std::string_view text);

/// How many words of a sample occur in a training text.
struct WordShare {
  std::int64_t n_known = 0;
  std::int64_t n_words = 0;
};

/// A last word that the end of the sample may have cut is left out.
WordShare share_of_known_words(std::string_view sample, const std::set<std::string>& known);

}  // namespace ferry
