// SPDX-License-Identifier: Apache-2.0
// Sequences that grow in the cache against sequences as a whole, and placements of weights against each other.
#include "offload/cache_checks.h"

#include <numeric>

#include "catch.h"
#include "core/rng.h"

namespace ferry::test {
namespace {

constexpr std::int64_t kTokens = 40;
constexpr std::int64_t kAtATime = 9;

std::vector<std::int32_t> sequence(const ModelConfig& config, std::int64_t count) {
  return random_batch(config, 1, count, 5).inputs;
}

/// Numbers from 1 to 12 that add up to `total`.
std::vector<std::int32_t> random_split(std::int64_t total, std::uint64_t seed) {
  const CounterRng rng(seed, "split");
  std::vector<std::int32_t> counts;
  for (std::int64_t left = total; left > 0; left -= counts.back()) {
    const auto draw = 1 + static_cast<std::int64_t>(rng.bits(counts.size()) % 12);
    counts.push_back(static_cast<std::int32_t>(std::min(draw, left)));
  }
  return counts;
}

}  // namespace

EngineOptions cached_options(DType dtype, Offload offload) {
  EngineOptions options;
  options.dtype = dtype;
  options.training = false;
  options.seq_len = kAtATime;
  options.cache_tokens = kTokens;
  options.offload = offload;
  options.vocab_chunk = 20;
  options.piece_bytes = 500;
  options.threads = 2;
  options.poison = true;
  return options;
}

std::vector<std::vector<float>> extend_by(Engine& engine, const std::vector<std::int32_t>& counts) {
  const std::int64_t total = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  const std::vector<std::int32_t> ids = sequence(small_config(true), total);
  std::vector<std::vector<float>> logits;
  std::size_t first = 0;
  for (const std::int32_t count : counts) {
    logits.push_back(engine.extend(std::span(ids).subspan(first, static_cast<std::size_t>(count))));
    first += static_cast<std::size_t>(count);
  }
  return logits;
}

void check_cached_logits_against_pytorch(const std::string& backend_name) {
  const auto backend = create_backend(backend_name, {.threads = 2});
  const std::string name = GENERATE(from_range(model_fixtures()));
  CAPTURE(name);
  const ModelFixture fixture(name);
  EngineOptions options = cached_options(DType::kF32, Offload::kAll);
  options.seq_len = 5;
  options.cache_tokens = fixture.batch.seq_len;
  Engine engine(*backend, fixture.config, options);
  load_weights(engine, fixture);
  const auto vocab = fixture.config.vocab_size;
  const auto& logits = fixture.tensor("logits");  // of the last positions
  for (std::int64_t b = 0; b < fixture.batch.batch_size; ++b) {
    const auto length = static_cast<std::size_t>(fixture.batch.seq_len);
    const auto row = std::span(fixture.batch.inputs).subspan(static_cast<std::size_t>(b) * length, length);
    const std::vector<float> want(logits.begin() + b * vocab, logits.begin() + (b + 1) * vocab);
    engine.reset_cache();
    engine.extend(row.first(length / 2));
    std::vector<float> got;
    for (std::size_t i = length / 2; i < length; ++i) got = engine.extend(row.subspan(i, 1));
    CHECK(relative_error(got, want) < 1e-5);
    engine.reset_cache();
    CHECK(relative_error(engine.extend(row), want) < 1e-5);
  }
}

void check_any_split_gives_the_logits_of_the_whole(const std::string& backend_name) {
  const auto dtype = GENERATE(DType::kF32, DType::kBf16);
  const bool tied = GENERATE(true, false);
  CAPTURE(to_string(dtype), tied);
  const auto backend = create_backend(backend_name, {.threads = 2});
  const ModelConfig config = small_config(tied);
  EngineOptions options = cached_options(dtype, Offload::kAll);
  Engine cached(*backend, config, options);
  options.seq_len = kTokens;
  options.cache_tokens = 0;
  Engine whole(*backend, config, options);
  cached.initialize(3);
  whole.initialize(3);
  const std::vector<std::int32_t> ids = sequence(config, kTokens);
  // f32: sums in another order, as against PyTorch. bf16: roundings of each layer's activations may go the other way.
  const double tolerance = dtype == DType::kF32 ? 1e-5 : 3e-2;
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    const std::vector<std::int32_t> counts = random_split(kTokens, seed);
    cached.reset_cache();
    const auto got = extend_by(cached, counts);
    std::size_t n = 0;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      n += static_cast<std::size_t>(counts[i]);
      INFO(n << " tokens, split " << seed);
      CHECK(relative_error(got[i], whole.next_logits(std::span(ids).first(n))) < tolerance);
    }
    CHECK(cached.n_cached() == kTokens);
  }
}

void check_placement_changes_no_logit(const std::string& backend_name) {
  const auto dtype = GENERATE(DType::kF32, DType::kBf16);
  const bool tied = GENERATE(true, false);
  CAPTURE(to_string(dtype), tied);
  const auto backend = create_backend(backend_name, {.threads = 2});
  const auto logits = [&](const EngineOptions& options) {
    Engine engine(*backend, small_config(tied), options);
    engine.initialize(3);
    return extend_by(engine, {1, 1, 13, 1, 1, 7, 2, 1});
  };
  const auto resident = logits(cached_options(dtype, Offload::kNone));
  EngineOptions options = cached_options(dtype, Offload::kAll);
  CHECK(logits(options) == resident);
  options.weight_slots = 3;
  options.resident_layers = 1;
  options.poison = false;
  CHECK(logits(options) == resident);
  options.resident_state_layers = 2;
  options.piece_bytes = 1 << 20;
  CHECK(logits(options) == resident);
  options.offload = Offload::kLayers;
  CHECK(logits(options) == resident);
}

}  // namespace ferry::test
