// SPDX-License-Identifier: Apache-2.0
// Sampling by inverting the cumulative distribution, in f64 so that no probability is lost in a large vocabulary.
#include "train/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"

namespace ferry {
namespace {

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

char to_lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

}  // namespace

Sampler::Sampler(double temperature, std::uint64_t seed) : temperature_(temperature), rng_(seed, "sampler") {
  FERRY_CHECK(std::isfinite(temperature) && temperature >= 0, kConfig,
              "temperature is {}: expected 0 (greedy) or a positive number, such as 0.6", temperature);
}

double Sampler::uniform() {
  const auto high = static_cast<std::uint64_t>(rng_.bits(2 * n_draws_));
  const auto low = static_cast<std::uint64_t>(rng_.bits(2 * n_draws_ + 1));
  ++n_draws_;
  return static_cast<double>((high << 32 | low) >> 11) * 0x1.0p-53;
}

std::int32_t Sampler::sample(std::span<const float> logits) {
  FERRY_CHECK(!logits.empty(), kConfig, "nothing to sample from: no logits");
  for (std::size_t i = 0; i < logits.size(); ++i) {
    FERRY_CHECK(!std::isnan(logits[i]) && logits[i] != std::numeric_limits<float>::infinity(), kConfig,
                "the model's output for token {} is {}: its weights are damaged, use an earlier save", i, logits[i]);
  }
  const auto largest = std::max_element(logits.begin(), logits.end());
  if (temperature_ == 0) return static_cast<std::int32_t>(largest - logits.begin());

  std::vector<double> cumulative(logits.size());
  double total = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    total += std::exp((static_cast<double>(logits[i]) - static_cast<double>(*largest)) / temperature_);
    cumulative[i] = total;
  }
  const auto chosen = std::upper_bound(cumulative.begin(), cumulative.end(), uniform() * total);
  return static_cast<std::int32_t>(std::min(chosen - cumulative.begin(), std::ssize(cumulative) - 1));
}

void require_byte_vocabulary(const ModelConfig& config, std::string_view what) {
  FERRY_CHECK(has_byte_vocabulary(config), kConfig,
              "{} needs a tokenizer for a vocabulary of {}; ferry itself can spell only bytes (vocab_size {}): "
              "load the saved folder with Hugging Face transformers instead",
              what, config.vocab_size, kByteVocabularySize);
}

void generate_bytes(const NextLogits& next_logits, const ByteTextOptions& options,
                    const std::function<bool(char)>& on_byte) {
  Sampler sampler(options.temperature, options.seed);
  std::vector<std::int32_t> ids = encode_bytes(options.prompt.empty() ? "\n" : options.prompt);
  for (std::int64_t i = 0; i < options.n_tokens; ++i) {
    const auto seen = std::min(static_cast<std::size_t>(options.context), ids.size());
    const std::int32_t id = sampler.sample(next_logits(std::span(ids).last(seen)));
    ids.push_back(id);
    if (!on_byte(static_cast<char>(id))) return;
  }
}

std::vector<std::string> split_words(std::string_view text) {
  std::vector<std::string> words;
  bool inside = false;
  for (const char c : text) {
    if (!is_letter(c)) {
      inside = false;
      continue;
    }
    if (!inside) words.emplace_back();
    words.back().push_back(to_lower(c));
    inside = true;
  }
  return words;
}

WordShare share_of_known_words(std::string_view sample, const std::set<std::string>& known) {
  std::vector<std::string> words = split_words(sample);
  if (!sample.empty() && is_letter(sample.back())) words.pop_back();
  WordShare share{.n_known = 0, .n_words = std::ssize(words)};
  share.n_known = std::count_if(words.begin(), words.end(), [&](const std::string& w) { return known.contains(w); });
  return share;
}

}  // namespace ferry
