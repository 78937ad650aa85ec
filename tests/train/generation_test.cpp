// SPDX-License-Identifier: Apache-2.0
// Tests of train/generation.h.
#include "train/generation.h"

#include <algorithm>

#include "backend/backend.h"
#include "catch.h"

using namespace ferry;

namespace {

using Ids = std::vector<std::int32_t>;

/// The likeliest token is one more than the last.
std::vector<float> next_number(std::span<const std::int32_t> ids) {
  std::vector<float> logits(256, 0);
  logits[static_cast<std::size_t>(ids.back()) + 1] = 1;
  return logits;
}

ModelConfig tiny_model() {
  ModelConfig config;
  config.vocab_size = 64;
  config.hidden_size = 16;
  config.intermediate_size = 24;
  config.n_layers = 2;
  config.n_heads = 2;
  config.n_kv_heads = 1;
  config.head_dim = 8;
  config.max_position_embeddings = 32;
  config.initializer_range = 0.5;
  return config;
}

struct TinyEngine {
  std::unique_ptr<Backend> backend = create_backend("cpu", {.threads = 1});
  Engine engine;

  explicit TinyEngine(std::int64_t cache_tokens) : engine(*backend, tiny_model(), options(cache_tokens)) {
    engine.initialize(4);
  }
  static EngineOptions options(std::int64_t cache_tokens) {
    EngineOptions options;
    options.dtype = DType::kF32;
    options.training = false;
    options.seq_len = 16;
    options.cache_tokens = cache_tokens;
    options.threads = 1;
    return options;
  }
};

Ids greedy(const Extend& extend, const Ids& prompt, std::int64_t n_tokens) {
  Ids ids;
  generate(extend, prompt, {.n_tokens = n_tokens, .end_ids = {}, .sampler = {.temperature = 0}}, [&](std::int32_t id) {
    ids.push_back(id);
    return true;
  });
  return ids;
}

}  // namespace

TEST_CASE("the prompt is given at once, then token by token") {
  std::vector<Ids> given;
  const auto extend = [&](std::span<const std::int32_t> ids) {
    given.emplace_back(ids.begin(), ids.end());
    return next_number(ids);
  };
  CHECK(greedy(extend, {4, 7}, 3) == Ids{8, 9, 10});
  CHECK(given == std::vector<Ids>{{4, 7}, {8}, {9}});
}

TEST_CASE("generation ends at a token that ends a text, and where the caller says so") {
  Ids ids;
  const GenerationOptions options{.n_tokens = 100, .end_ids = {90, 12}, .sampler = {.temperature = 0}};
  generate(next_number, Ids{8}, options, [&](std::int32_t id) {
    ids.push_back(id);
    return true;
  });
  CHECK(ids == Ids{9, 10, 11});
  ids.clear();
  generate(next_number, Ids{8}, options, [&](std::int32_t id) {
    ids.push_back(id);
    return ids.size() < 2;
  });
  CHECK(ids == Ids{9, 10});
}

TEST_CASE("with and without the cache the same tokens are the likeliest") {
  TinyEngine cached(16);
  TinyEngine whole(0);
  CachedSequence sequence(cached.engine, 16);
  const Ids got = greedy([&](std::span<const std::int32_t> ids) { return sequence.extend(ids); }, {3, 1, 4}, 13);
  CHECK(got == greedy(extend_without_cache(whole.engine, 16), {3, 1, 4}, 13));
  CHECK(std::ranges::count(got, got[0]) < 13);
  CHECK(sequence.n_restarts() == 0);
}

TEST_CASE("a sequence that outgrows the cache goes on with the last half of it") {
  TinyEngine cached(8);
  TinyEngine whole(0);
  CachedSequence sequence(cached.engine, 8);
  Ids all = {3, 1, 4};
  std::vector<float> logits = sequence.extend(all);
  std::size_t first = 0;  // of what the model sees
  for (int i = 0; i < 20; ++i) {
    all.push_back(static_cast<std::int32_t>(std::ranges::max_element(logits) - logits.begin()));
    logits = sequence.extend(std::span(all).last(1));
    if (all.size() - first > 8) first = all.size() - 4;
    const std::vector<float> want = whole.engine.next_logits(std::span(all).subspan(first));
    for (std::size_t v = 0; v < want.size(); ++v) REQUIRE(std::abs(logits[v] - want[v]) < 1e-4F);
  }
  CHECK(sequence.n_restarts() == 3);
}

TEST_CASE("of a prompt longer than the cache the model sees the last half of the cache") {
  TinyEngine cached(8);
  CachedSequence sequence(cached.engine, 8);
  sequence.extend(Ids{1, 2, 3, 4, 5, 6, 7, 8, 9});
  CHECK(cached.engine.n_cached() == 4);
  const std::vector<float> got = sequence.extend(Ids{10});
  cached.engine.reset_cache();
  const std::vector<float> want = cached.engine.extend(Ids{6, 7, 8, 9, 10});
  for (std::size_t v = 0; v < want.size(); ++v) CHECK(std::abs(got[v] - want[v]) < 1e-4F);
}

TEST_CASE("without a cache the model sees the last ids of its context") {
  TinyEngine whole(0);
  const Extend extend = extend_without_cache(whole.engine, 3);
  CHECK(extend(Ids{1, 2}) == whole.engine.next_logits(Ids{1, 2}));
  CHECK(extend(Ids{3, 4}) == whole.engine.next_logits(Ids{2, 3, 4}));
}

TEST_CASE("an empty text of bytes begins with a newline") {
  CHECK(byte_prompt("") == Ids{'\n'});
  CHECK(byte_prompt("ab") == Ids{'a', 'b'});
}
