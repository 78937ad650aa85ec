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

struct Candidate {
  std::int32_t id = 0;
  double weight = 0;  // its probability times a constant
};

bool is_likelier(const Candidate& a, const Candidate& b) {
  return a.weight > b.weight || (a.weight == b.weight && a.id < b.id);
}

void check_logits(std::span<const float> logits) {
  FERRY_CHECK(!logits.empty(), kConfig, "nothing to sample from: no logits");
  for (std::size_t i = 0; i < logits.size(); ++i) {
    FERRY_CHECK(!std::isnan(logits[i]) && logits[i] != std::numeric_limits<float>::infinity(), kConfig,
                "the model's output for token {} is {}: its weights are damaged, use an earlier save", i, logits[i]);
  }
}

/// All tokens, by id.
std::vector<Candidate> candidates_of(std::span<const float> logits, double largest, double temperature) {
  std::vector<Candidate> candidates;
  candidates.reserve(logits.size());
  for (const float logit : logits) {
    candidates.push_back({.id = static_cast<std::int32_t>(candidates.size()),
                          .weight = std::exp((static_cast<double>(logit) - largest) / temperature)});
  }
  return candidates;
}

double total_weight(std::span<const Candidate> candidates) {
  double total = 0;
  for (const Candidate& candidate : candidates) total += candidate.weight;
  return total;
}

/// Of candidates from the likeliest down: the fewest that have the share.
void keep_share(std::vector<Candidate>& candidates, double share) {
  const double wanted = share * total_weight(candidates);
  double sum = 0;
  std::size_t n_kept = 0;
  while (n_kept < candidates.size() && sum < wanted) sum += candidates[n_kept++].weight;
  candidates.resize(n_kept);
}

/// `uniform` is in [0, 1).
std::int32_t draw(std::span<const Candidate> candidates, double uniform) {
  const double target = uniform * total_weight(candidates);
  double sum = 0;
  for (const Candidate& candidate : candidates) {
    sum += candidate.weight;
    if (sum > target) return candidate.id;
  }
  return candidates.back().id;
}

}  // namespace

Sampler::Sampler(const SamplerOptions& options) : options_(options), rng_(options.seed, "sampler") {
  FERRY_CHECK(std::isfinite(options.temperature) && options.temperature >= 0, kConfig,
              "temperature is {}: expected 0 (greedy) or a positive number, such as 0.6", options.temperature);
  FERRY_CHECK(options.top_k >= 0, kConfig, "top_k is {}: expected 0 (all tokens) or more, such as 40", options.top_k);
  FERRY_CHECK(options.top_p > 0 && options.top_p <= 1, kConfig,
              "top_p is {}: expected more than 0, and at most 1 (all tokens), such as 0.9", options.top_p);
}

double Sampler::uniform() {
  const auto high = static_cast<std::uint64_t>(rng_.bits(2 * n_draws_));
  const auto low = static_cast<std::uint64_t>(rng_.bits(2 * n_draws_ + 1));
  ++n_draws_;
  return static_cast<double>((high << 32 | low) >> 11) * 0x1.0p-53;
}

std::int32_t Sampler::sample(std::span<const float> logits) {
  check_logits(logits);
  const auto likeliest = std::ranges::max_element(logits);
  if (options_.temperature == 0) return static_cast<std::int32_t>(likeliest - logits.begin());

  std::vector<Candidate> candidates = candidates_of(logits, static_cast<double>(*likeliest), options_.temperature);
  const auto top_k = static_cast<std::size_t>(options_.top_k);
  const bool cuts = (top_k > 0 && top_k < candidates.size()) || options_.top_p < 1;
  if (cuts) std::ranges::sort(candidates, is_likelier);
  if (top_k > 0 && top_k < candidates.size()) candidates.resize(top_k);
  if (options_.top_p < 1) keep_share(candidates, options_.top_p);
  if (cuts) std::ranges::sort(candidates, {}, &Candidate::id);
  return draw(candidates, uniform());
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
