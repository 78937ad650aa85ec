// SPDX-License-Identifier: Apache-2.0
// Tests of train/sampler.h.
#include "train/sampler.h"

#include <cmath>
#include <limits>

#include "catch.h"
#include "thrown.h"

using namespace ferry;

TEST_CASE("temperature 0 takes the likeliest token, the lowest id of equal ones") {
  Sampler sampler({.temperature = 0});
  CHECK(sampler.sample(std::vector<float>{0.5F, 2, -1, 2}) == 1);
  CHECK(sampler.sample(std::vector<float>{-std::numeric_limits<float>::infinity(), -3}) == 1);
}

TEST_CASE("tokens are drawn with the probabilities of the softmax") {
  const double temperature = GENERATE(1.0, 0.5, 2.0);
  const std::vector<float> logits = {1000, 1001, 999, 998.5F};
  Sampler sampler({.temperature = temperature, .seed = 42});
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
    Sampler sampler({.seed = seed});
    std::vector<std::int32_t> ids;
    for (int i = 0; i < 20; ++i) ids.push_back(sampler.sample(flat));
    return ids;
  };
  CHECK(draw(1) == draw(1));
  CHECK(draw(1) != draw(2));
}

TEST_CASE("logits that are no numbers are refused with the token") {
  Sampler sampler({});
  CHECK(thrown([&] {
          sampler.sample(std::vector<float>{0, NAN});
        }).find("output for token 1 is nan") != std::string::npos);
  CHECK(thrown([&] { sampler.sample(std::vector<float>{INFINITY, 0}); }).find("token 0 is inf") != std::string::npos);
  CHECK(thrown([&] { sampler.sample(std::vector<float>{}); }) == "config: nothing to sample from: no logits");
}

TEST_CASE("options out of range are refused") {
  const auto refusal = [](const SamplerOptions& options) { return thrown([&] { Sampler sampler(options); }); };
  CHECK(refusal({.temperature = -1}).find("temperature is -1") != std::string::npos);
  CHECK(refusal({.temperature = NAN}).find("temperature is nan") != std::string::npos);
  CHECK(refusal({.top_k = -1}).find("top_k is -1") != std::string::npos);
  for (const double top_p : {0.0, 1.01, -0.5, std::nan("")}) CHECK(refusal({.top_p = top_p}).find("top_p is ") == 8);
}

namespace {

/// Logits whose softmax is 0.4, 0.1, 0.3, 0.2.
const std::vector<float> kLogits = {std::log(0.4F), std::log(0.1F), std::log(0.3F), std::log(0.2F)};

std::vector<double> shares(const std::vector<float>& logits, SamplerOptions options) {
  constexpr int kDraws = 20000;
  options.seed = 7;
  Sampler sampler(options);
  std::vector<double> result(logits.size(), 0);
  for (int i = 0; i < kDraws; ++i) result[static_cast<std::size_t>(sampler.sample(logits))] += 1.0 / kDraws;
  return result;
}

void check_shares(const std::vector<double>& got, const std::vector<double>& want) {
  for (std::size_t i = 0; i < want.size(); ++i) {
    CAPTURE(i, got[i], want[i]);
    if (want[i] == 0) {
      CHECK(got[i] == 0);
    } else {
      CHECK(std::abs(got[i] - want[i]) <= 0.0177);  // five standard deviations, at most, of 20000 draws
    }
  }
}

}  // namespace

TEST_CASE("top_k leaves the likeliest tokens, in their proportions") {
  check_shares(shares(kLogits, {.top_k = 2}), {4.0 / 7, 0, 3.0 / 7, 0});
  check_shares(shares(kLogits, {.top_k = 1}), {1, 0, 0, 0});
  check_shares(shares(kLogits, {.top_k = 4}), {0.4, 0.1, 0.3, 0.2});
}

TEST_CASE("top_p leaves the fewest of the likeliest that have the share") {
  check_shares(shares(kLogits, {.top_p = 0.39}), {1, 0, 0, 0});
  check_shares(shares(kLogits, {.top_p = 0.65}), {4.0 / 7, 0, 3.0 / 7, 0});
  check_shares(shares(kLogits, {.top_p = 0.75}), {4.0 / 9, 0, 3.0 / 9, 2.0 / 9});
  check_shares(shares(kLogits, {.top_p = 0.95}), {0.4, 0.1, 0.3, 0.2});
}

TEST_CASE("temperature comes before top_k, and top_k before top_p") {
  // At temperature 1/2: 16, 1, 9, 4 of 30.
  check_shares(shares(kLogits, {.temperature = 0.5, .top_p = 0.52}), {1, 0, 0, 0});
  check_shares(shares(kLogits, {.temperature = 0.5, .top_p = 0.55}), {16.0 / 25, 0, 9.0 / 25, 0});
  // 4/9 of what top_k leaves, but only 0.4 of all.
  check_shares(shares(kLogits, {.top_k = 3, .top_p = 0.43}), {1, 0, 0, 0});
  check_shares(shares(kLogits, {.top_p = 0.43}), {4.0 / 7, 0, 3.0 / 7, 0});
}

TEST_CASE("of equally likely tokens the lower ids are left") {
  const std::vector<float> flat(5, 1.0F);
  check_shares(shares(flat, {.top_k = 2}), {0.5, 0.5, 0, 0, 0});
  check_shares(shares(flat, {.top_p = 0.5}), {1.0 / 3, 1.0 / 3, 1.0 / 3, 0, 0});
}

TEST_CASE("filters that leave everything draw what no filter draws") {
  const std::vector<float> logits = {1, 3, 2, 2, 0, 5};
  Sampler plain({.seed = 3});
  Sampler filtered({.top_k = 5, .top_p = 1, .seed = 3});
  Sampler wide({.top_k = 100, .seed = 3});
  int n_same = 0;
  for (int i = 0; i < 100; ++i) {
    const std::int32_t id = plain.sample(logits);
    CHECK(wide.sample(logits) == id);
    n_same += filtered.sample(logits) == id ? 1 : 0;
  }
  CHECK(n_same > 90);  // but for the least likely token, whose weight moves the others a little
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
