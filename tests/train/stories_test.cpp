// SPDX-License-Identifier: Apache-2.0
// stories260K, a published model of 260,000 parameters: imported, it gives the losses, logits and text that it is known
// for (tests/fixtures/stories260k/expected.json, computed by another program).
#include <cmath>
#include <nlohmann/json.hpp>

#include "catch.h"
#include "core/rng.h"
#include "core/tokens.h"
#include "data/token_text.h"
#include "io/file_test_helpers.h"
#include "train/generation.h"
#include "train/weights_io.h"

using namespace ferry;
using namespace ferry::test;

namespace {

using Ids = std::vector<std::int32_t>;

const std::filesystem::path kFolder = std::filesystem::path(FERRY_FIXTURES) / "stories260k";

/// The model on the CPU backend, forward only.
struct Stories {
  explicit Stories(DType dtype = DType::kF32, Offload offload = Offload::kAll)
      : expected(nlohmann::json::parse(read_file(kFolder / "expected.json"))), config(load_model_config(kFolder)) {
    EngineOptions options;
    options.dtype = dtype;
    options.training = false;
    options.seq_len = 256;
    options.cache_tokens = 256;
    options.offload = offload;
    options.threads = 1;
    engine = std::make_unique<Engine>(*backend, config, options);
    load_weights(kFolder, config, *engine);
  }

  Ids ids(const char* key) const { return expected[key].get<Ids>(); }

  /// `start` and the likeliest `n` after it.
  Ids greedy(const Ids& start, std::int64_t n) const {
    Ids result = start;
    generate([this](std::span<const std::int32_t> part) { return engine->extend(part); }, start,
             {.n_tokens = n, .end_ids = {}, .sampler = {.temperature = 0}},
             [&](std::int32_t id) {
               result.push_back(id);
               return true;
             });
    return result;
  }

  nlohmann::json expected;
  ModelConfig config;
  std::unique_ptr<Backend> backend = create_backend("cpu", {.threads = 1});
  std::unique_ptr<Engine> engine;
};

/// `ids` predicting each next one; targets other than `only` are masked (-1: none is).
Batch batch_of(const Ids& ids, std::int64_t only) {
  Batch batch{.batch_size = 1,
              .seq_len = std::ssize(ids) - 1,
              .inputs = {ids.begin(), ids.end() - 1},
              .targets = {ids.begin() + 1, ids.end()},
              .n_valid_targets = only < 0 ? std::ssize(ids) - 1 : 1};
  for (std::int64_t i = 0; i < batch.seq_len; ++i) {
    if (only >= 0 && i != only) batch.targets[static_cast<std::size_t>(i)] = kIgnoreIndex;
  }
  return batch;
}

}  // namespace

TEST_CASE("stories260K gives the expected loss of every token, and their mean") {
  const Stories stories;
  const Ids ids = stories.ids("text_ids");
  const auto losses = stories.expected["text_nll_nats"].get<std::vector<double>>();
  REQUIRE(losses.size() == ids.size() - 1);
  for (std::size_t i = 0; i < losses.size(); ++i) {
    INFO(i);
    CHECK(std::abs(stories.engine->evaluate(batch_of(ids, static_cast<std::int64_t>(i))) - losses[i]) < 2e-5);
  }
  const double mean = stories.engine->evaluate(batch_of(ids, -1)) / static_cast<double>(losses.size());
  CHECK(std::abs(mean - stories.expected["text_mean_nll_nats"].get<double>()) < 2e-6);
}

TEST_CASE("stories260K gives the expected logits") {
  const Stories stories;
  const std::vector<float> logits = stories.engine->next_logits(stories.ids("text_ids"));
  const auto expected = stories.expected["last_logits"].get<std::vector<double>>();
  REQUIRE(logits.size() == expected.size());
  double worst = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) worst = std::max(worst, std::abs(logits[i] - expected[i]));
  CHECK(worst < 5e-5);
}

TEST_CASE("stories260K tells the expected story, greedily, offloaded or not") {
  const Stories stories(DType::kF32, GENERATE(Offload::kAll, Offload::kNone));
  const Ids expected = stories.ids("greedy_from_bos_ids");
  const Ids ids = stories.greedy({expected.front()}, std::ssize(expected) - 1);
  CHECK(ids == expected);
  CHECK(" " + TokenText::load(kFolder).decode(ids) == stories.expected["greedy_from_bos_text"].get<std::string>());
}

TEST_CASE("stories260K goes on with the expected story after any part of it, read in any parts") {
  const Stories stories;
  const Ids expected = stories.ids("greedy_from_bos_ids");
  const auto at = [&](std::int64_t index) { return expected.begin() + index; };
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    const CounterRng rng(seed, "prompt");
    const std::int64_t n_prompt = 2 + rng.bits(0) % 60;
    const std::int64_t n_first = 1 + rng.bits(1) % (n_prompt - 1);
    CAPTURE(n_prompt, n_first);
    stories.engine->reset_cache();
    stories.engine->extend(Ids(at(0), at(n_first)));
    CHECK(stories.greedy(Ids(at(n_first), at(n_prompt)), 20) == Ids(at(n_first), at(n_prompt + 20)));
  }
}

TEST_CASE("stories260K in bf16 is nearly as good") {
  const Stories stories(DType::kBf16);
  const Ids ids = stories.ids("text_ids");
  const double mean = stories.engine->evaluate(batch_of(ids, -1)) / static_cast<double>(ids.size() - 1);
  CHECK(std::abs(mean - stories.expected["text_mean_nll_nats"].get<double>()) < 0.02);
}

TEST_CASE("stories260K is saved with the bytes of its tensors") {
  const Stories stories;
  const TemporaryFolder folder;
  save_model(folder / "saved", stories.config, DType::kF32, *stories.engine);
  const ModelFolder before(kFolder);
  const ModelFolder after(folder / "saved");
  REQUIRE(after.names() == before.names());
  for (const std::string& name : before.names()) {
    INFO(name);
    CHECK(std::ranges::equal(after.tensor(name).bytes, before.tensor(name).bytes));
  }
}
