// SPDX-License-Identifier: Apache-2.0
// Tests of train/sampler.h.
#include "train/sampler.h"

#include <cmath>
#include <limits>

#include "catch.h"
#include "thrown.h"

using namespace ferry;

TEST_CASE("temperature 0 takes the likeliest token, the lowest id of equal ones") {
  Sampler sampler(0, 1);
  CHECK(sampler.sample(std::vector<float>{0.5F, 2, -1, 2}) == 1);
  CHECK(sampler.sample(std::vector<float>{-std::numeric_limits<float>::infinity(), -3}) == 1);
}

TEST_CASE("tokens are drawn with the probabilities of the softmax") {
  const double temperature = GENERATE(1.0, 0.5, 2.0);
  const std::vector<float> logits = {1000, 1001, 999, 998.5F};
  Sampler sampler(temperature, 42);
  constexpr int kDraws = 20000;
  std::vector<double> share(logits.size(), 0);
  for (int i = 0; i < kDraws; ++i) share[static_cast<std::size_t>(sampler.sample(logits))] += 1.0 / kDraws;
  double total = 0;
  for (const float logit : logits) total += std::exp((static_cast<double>(logit) - 1001) / temperature);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const double probability = std::exp((static_cast<double>(logits[i]) - 1001) / temperature) / total;
    // Five standard deviations of a binomial share.
    CHECK(std::abs(share[i] - probability) < 5 * std::sqrt(probability * (1 - probability) / kDraws));
  }
}

TEST_CASE("the same seed draws the same tokens, another seed others") {
  const std::vector<float> flat(100, 0);
  const auto draw = [&](std::uint64_t seed) {
    Sampler sampler(1, seed);
    std::vector<std::int32_t> ids;
    for (int i = 0; i < 20; ++i) ids.push_back(sampler.sample(flat));
    return ids;
  };
  CHECK(draw(1) == draw(1));
  CHECK(draw(1) != draw(2));
}

TEST_CASE("logits that are no numbers are refused with the token") {
  Sampler sampler(1, 1);
  CHECK(thrown([&] {
          sampler.sample(std::vector<float>{0, NAN});
        }).find("output for token 1 is nan") != std::string::npos);
  CHECK(thrown([&] { sampler.sample(std::vector<float>{INFINITY, 0}); }).find("token 0 is inf") != std::string::npos);
  CHECK(thrown([&] { sampler.sample(std::vector<float>{}); }) == "config: nothing to sample from: no logits");
}

TEST_CASE("a negative or non-finite temperature is refused") {
  CHECK(thrown([] { Sampler(-1, 0); }).find("temperature is -1") != std::string::npos);
  CHECK(thrown([] { Sampler(NAN, 0); }).find("temperature is nan") != std::string::npos);
}

TEST_CASE("a vocabulary that is not bytes needs a tokenizer") {
  ModelConfig config;
  config.vocab_size = 256;
  require_byte_vocabulary(config, "ferry generate");
  config.vocab_size = 128256;
  CHECK(thrown([&] {
          require_byte_vocabulary(config, "ferry generate");
        }).starts_with("config: ferry generate needs a tokenizer for a vocabulary of 128256"));
}

TEST_CASE("generation feeds the last bytes back and stops when asked") {
  std::vector<std::size_t> seen;
  // The likeliest byte is one more than the last.
  const auto next = [&](std::span<const std::int32_t> ids) {
    seen.push_back(ids.size());
    std::vector<float> logits(256, 0);
    logits[static_cast<std::size_t>(ids.back()) + 1] = 1;
    return logits;
  };
  std::string text;
  const ByteTextOptions options{.prompt = "ab", .n_tokens = 10, .context = 3, .temperature = 0, .seed = 0};
  generate_bytes(next, options, [&](char byte) {
    text.push_back(byte);
    return text.size() < 5;
  });
  CHECK(text == "cdefg");
  CHECK(seen == std::vector<std::size_t>{2, 3, 3, 3, 3});
}

TEST_CASE("words are runs of letters, lower-cased") {
  CHECK(split_words("The cat's 2 HATS--gone\n") == std::vector<std::string>{"the", "cat", "s", "hats", "gone"});
  CHECK(split_words("").empty());
}

TEST_CASE("the share of known words leaves out a word that may be cut off") {
  const std::set<std::string> known = {"the", "cat", "sat"};
  const WordShare share = share_of_known_words("The cat zat, the sa", known);
  CHECK(share.n_words == 4);
  CHECK(share.n_known == 3);
  CHECK(share_of_known_words("the", known).n_words == 0);
  CHECK(share_of_known_words("the.", known).n_words == 1);
}
