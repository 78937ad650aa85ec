// SPDX-License-Identifier: Apache-2.0
// Picks the next token from logits; compares a sample with the text that it should resemble.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/model_config.h"
#include "core/rng.h"
#include "data/byte_vocabulary.h"

namespace ferry {

/// What is left to draw from: first the temperature makes probabilities, then top_k, then top_p leaves out unlikely
/// tokens.
struct SamplerOptions {
  double temperature = 1;  // 0: the likeliest token
  std::int64_t top_k = 0;  // this many of the likeliest; 0 = all
  double top_p = 1;        // the fewest of the likeliest that have this share of the probability; 1 = all
  std::uint64_t seed = 0;
};

/// softmax(logits / temperature) in f64, of the tokens that are left. Of equally likely tokens the lower id counts as
/// the likelier. Draw i depends on (seed, i) alone.
class Sampler {
 public:
  /// Throws Error{kConfig}: temperature negative or not finite, top_k negative, top_p not in (0, 1].
  explicit Sampler(const SamplerOptions& options);

  /// Throws Error{kConfig} for logits that are empty or hold NaN.
  std::int32_t sample(std::span<const float> logits);

 private:
  double uniform();

  SamplerOptions options_;
  CounterRng rng_;
  std::uint64_t n_draws_ = 0;
};

inline bool has_byte_vocabulary(const ModelConfig& config) { return config.vocab_size == kByteVocabularySize; }

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
