// SPDX-License-Identifier: Apache-2.0
// What the engine refuses, and its accounts of memory and copies.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "catch.h"
#include "core/error.h"
#include "offload/gradient_norms.h"
#include "offload/row_updates.h"
#include "offload/tiny_model.h"

namespace ferry::test {
namespace {

EngineOptions small_options() {
  EngineOptions options;
  options.dtype = DType::kF32;
  options.batch_size = 2;
  options.seq_len = 9;
  options.vocab_chunk = 16;
  options.threads = 1;
  return options;
}

std::size_t sum(const std::vector<MemoryLine>& lines) {
  return std::accumulate(lines.begin(), lines.end(), std::size_t{0},
                         [](std::size_t total, const MemoryLine& line) { return total + line.size_bytes; });
}

template <class Fn>
std::string message_of(Fn&& fn) {
  try {
    fn();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("the memory tables add up to what is allocated") {
  const auto backend = create_backend("cpu", {.threads = 1});
  EngineOptions options = small_options();
  options.offload = GENERATE(Offload::kAll, Offload::kNone);
  options.training = GENERATE(true, false);
  options.recompute = GENERATE(Recompute::kLean, Recompute::kNone);
  const Engine engine(*backend, small_config(GENERATE(true, false)), options);
  CHECK(sum(engine.device_memory()) == backend->device_bytes());
  CHECK(sum(engine.host_memory()) == backend->host_bytes());
}

TEST_CASE("a step moves every weight down twice at most and every gradient up once") {
  const auto backend = create_backend("cpu", {.threads = 1});
  const ModelConfig config = small_config(true);
  EngineOptions options = small_options();
  Engine engine(*backend, config, options);
  engine.initialize(0);
  const std::int64_t step = engine.train_step(random_batch(config, 2, 9, 0), 1e-3);
  engine.finish();
  const StepStats stats = engine.stats(step);
  std::int64_t segment_bytes = 0;
  for (const Segment& segment : engine.parameters().segments()) segment_bytes += segment.elems * 4;
  const std::int64_t n = 2 * 9;
  const std::int64_t x_bytes = n * config.hidden_size * 4;
  const std::int64_t norm_bytes = GradientNorms::count(engine.parameters()) * 4;
  CHECK(stats.d2h_bytes == segment_bytes + x_bytes + norm_bytes + 4);
  const std::int64_t token_bytes = (4 * n + config.vocab_size) * 4;
  CHECK(stats.h2d_bytes <= 2 * segment_bytes + x_bytes + token_bytes);
  CHECK(stats.h2d_bytes > segment_bytes + x_bytes);
}

TEST_CASE("what offload = none moves without norms is tokens and losses") {
  const auto backend = create_backend("cpu", {.threads = 1});
  const ModelConfig config = small_config(false);
  EngineOptions options = small_options();
  options.offload = Offload::kNone;
  options.check_finite = false;
  Engine engine(*backend, config, options);
  engine.initialize(0);
  const Batch batch = random_batch(config, 2, 9, 0);
  const auto n_distinct = static_cast<std::int64_t>(BatchRows(batch.inputs).distinct().size());
  const StepStats stats = engine.stats(engine.train_step(batch, 1e-3));
  CHECK(stats.h2d_bytes == (3 * 2 * 9 + n_distinct) * 4);
  CHECK(stats.d2h_bytes == 4);
  CHECK(std::isnan(stats.grad_norm));
}

TEST_CASE("a batch without valid targets gives loss 0 and no gradient") {
  const auto backend = create_backend("cpu", {.threads = 1});
  const ModelConfig config = small_config(true);
  EngineOptions options = small_options();
  options.adamw.beta1 = 0;
  Engine engine(*backend, config, options);
  engine.initialize(0);
  Batch batch = random_batch(config, 2, 9, 0);
  std::ranges::fill(batch.targets, kIgnoreIndex);
  batch.n_valid_targets = 0;
  CHECK(engine.loss(engine.train_step(batch, 1e-3)) == 0.0);
  for (const auto& [name, gradient] : values(engine, ParameterArray::kFirstMoment)) {
    CHECK(std::ranges::all_of(gradient, [](float g) { return g == 0.0F; }));
  }
}

TEST_CASE("initial weights depend on the seed and the name, not on threads or placement") {
  const auto backend = create_backend("cpu", {.threads = 1});
  EngineOptions options = small_options();
  Engine one(*backend, small_config(true), options);
  one.initialize(3);
  options.threads = 4;
  options.offload = Offload::kNone;
  options.piece_bytes = 500;
  Engine other(*backend, small_config(true), options);
  other.initialize(3);
  CHECK(snapshot(one, ParameterArray::kWeight) == snapshot(other, ParameterArray::kWeight));
  other.initialize(4);
  CHECK(snapshot(one, ParameterArray::kWeight) != snapshot(other, ParameterArray::kWeight));
}

TEST_CASE("weights set by hand are seen by the next pass, whatever the slots hold") {
  const auto backend = create_backend("cpu", {.threads = 1});
  const ModelConfig config = small_config(true);
  EngineOptions options = small_options();
  options.weight_slots = 9;
  const Batch batch = random_batch(config, 2, 9, 0);
  Engine engine(*backend, config, options);
  engine.initialize(3);
  const double before = engine.evaluate(batch);
  engine.initialize(4);
  Engine fresh(*backend, config, options);
  fresh.initialize(4);
  const double after = engine.evaluate(batch);
  CHECK(after == fresh.evaluate(batch));
  CHECK(after != before);
}

TEST_CASE("initial weights have the deviation of initializer_range, norms are 1") {
  const auto backend = create_backend("cpu", {.threads = 1});
  const ModelConfig config = small_config(true);
  Engine engine(*backend, config, small_options());
  engine.initialize(3);
  auto weights = values(engine, ParameterArray::kWeight);
  for (const float norm : weights.at("model.norm.weight")) CHECK(norm == 1.0F);
  const auto& table = weights.at("model.embed_tokens.weight");
  double square = 0;
  for (const float w : table) square += static_cast<double>(w) * static_cast<double>(w);
  const double deviation = std::sqrt(square / static_cast<double>(table.size()));
  CHECK(std::abs(deviation - config.initializer_range) < 0.05 * config.initializer_range);
}

TEST_CASE("the engine names what is wrong with a batch or an option") {
  const auto backend = create_backend("cpu", {.threads = 1});
  const ModelConfig config = small_config(true);
  Engine engine(*backend, config, small_options());
  engine.initialize(0);
  SECTION("a token beyond the vocabulary") {
    Batch batch = random_batch(config, 2, 9, 0);
    batch.inputs[5] = 61;
    CHECK(
        has(message_of([&] { engine.train_step(batch, 1e-3); }), "input 5 of the batch is token 61: expected 0 to 60"));
  }
  SECTION("a target beyond the vocabulary") {
    Batch batch = random_batch(config, 2, 9, 0);
    batch.targets[4] = -7;
    CHECK(has(message_of([&] { engine.evaluate(batch); }), "target 4 of the batch is token -7: expected 0 to 60"));
  }
  SECTION("a batch larger than planned") {
    const Batch batch = random_batch(config, 3, 9, 0);
    CHECK(has(message_of([&] { engine.train_step(batch, 1e-3); }), "batch is 3 x 9, the engine was planned for 2 x 9"));
  }
  SECTION("more sequences than planned, however short") {
    const Batch batch = random_batch(config, 6, 3, 0);
    CHECK(has(message_of([&] { engine.train_step(batch, 1e-3); }), "batch is 6 x 3, the engine was planned for 2 x 9"));
  }
  SECTION("too many ids") {
    const std::vector<std::int32_t> ids(10, 0);
    CHECK(has(message_of([&] { engine.next_logits(ids); }), "10 ids: expected 1 to 9"));
  }
  SECTION("one slot") {
    EngineOptions options = small_options();
    options.weight_slots = 1;
    CHECK(has(message_of([&] { Engine(*backend, config, options); }), "weight_slots is 1: expected 2 or more"));
  }
  SECTION("a context longer than the model's") {
    EngineOptions options = small_options();
    options.seq_len = 65;
    CHECK(has(message_of([&] { Engine(*backend, config, options); }), "max_position_embeddings 64"));
  }
}

}  // namespace ferry::test
