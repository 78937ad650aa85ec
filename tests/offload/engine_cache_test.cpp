// SPDX-License-Identifier: Apache-2.0
// The key/value cache: the logits of whole sequences, its place in the plan, what it refuses.
#include <algorithm>

#include "catch.h"
#include "core/error.h"
#include "offload/cache_checks.h"
#include "offload/forwarding_backend.h"
#include "thrown.h"

namespace ferry::test {
namespace {

/// Counts what goes down to the device.
class CountingBackend : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  void copy(StreamRef stream, void* destination, const void* source, std::size_t size_bytes,
            CopyDirection direction) override {
    if (direction == CopyDirection::kHostToDevice) down_bytes += size_bytes;
    ForwardingBackend::copy(stream, destination, source, size_bytes, direction);
  }
  std::size_t down_bytes = 0;
};

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("logits from the cache agree with PyTorch, id by id and at once") {
  check_cached_logits_against_pytorch("cpu");
}

TEST_CASE("a sequence in any parts gives the logits of the whole") {
  check_any_split_gives_the_logits_of_the_whole("cpu");
}

TEST_CASE("where weights live changes no bit of the logits, and every access is ordered") {
  check_placement_changes_no_logit(GENERATE("cpu", "trace:cpu"));
}

TEST_CASE("the same parts give the same bits again after a reset") {
  const auto backend = create_backend("cpu", {.threads = 2});
  Engine engine(*backend, small_config(true), cached_options(DType::kBf16, Offload::kAll));
  engine.initialize(3);
  const auto first = extend_by(engine, {5, 1, 1, 12});
  CHECK(engine.n_cached() == 19);
  engine.reset_cache();
  CHECK(engine.n_cached() == 0);
  CHECK(extend_by(engine, {5, 1, 1, 12}) == first);
}

TEST_CASE("other passes leave the cache alone, new weights empty it") {
  const auto backend = create_backend("cpu", {.threads = 2});
  const ModelConfig config = small_config(true);
  Engine engine(*backend, config, cached_options(DType::kF32, Offload::kAll));
  engine.initialize(3);
  const auto want = extend_by(engine, {5, 1});
  engine.reset_cache();
  const std::vector<std::int32_t> ids = random_batch(config, 1, 6, 5).inputs;
  CHECK(engine.extend(std::span(ids).first(5)) == want[0]);
  engine.evaluate(random_batch(config, 1, 9, 0));
  engine.next_logits(std::vector<std::int32_t>{1, 2, 3});
  CHECK(engine.extend(std::span(ids).subspan(5)) == want[1]);
  engine.initialize(3);
  CHECK(engine.n_cached() == 0);
}

TEST_CASE("where everything lives on the device, a token moves nothing but itself") {
  const auto tied = GENERATE(true, false);
  CountingBackend backend(create_backend("cpu", {.threads = 1}));
  Engine engine(backend, small_config(tied), cached_options(DType::kF32, Offload::kNone));
  engine.initialize(3);
  extend_by(engine, {5});
  const std::size_t before = backend.down_bytes;
  engine.extend(std::vector<std::int32_t>{7});
  CHECK(backend.down_bytes - before == sizeof(std::int32_t));
}

TEST_CASE("parts of a long prompt fetch the head once") {
  CountingBackend backend(create_backend("cpu", {.threads = 1}));
  const ModelConfig config = small_config(true);
  EngineOptions options = cached_options(DType::kF32, Offload::kAll);
  Engine engine(backend, config, options);
  engine.initialize(3);
  const std::size_t before = backend.down_bytes;
  extend_by(engine, {18});
  std::size_t want = 2 * 9 * (sizeof(std::int32_t) + static_cast<std::size_t>(config.hidden_size) * sizeof(float));
  for (const Segment& segment : engine.parameters().segments()) {
    const std::size_t times = segment.kind == Segment::Kind::kLayer ? 2 : 1;
    want += times * static_cast<std::size_t>(segment.elems) * sizeof(float);
  }
  CHECK(backend.down_bytes - before == want);
}

TEST_CASE("the cache is a line of the plan, and the plan is what is allocated") {
  const auto backend = create_backend("cpu", {.threads = 1});
  const auto dtype = GENERATE(DType::kF32, DType::kBf16);
  const ModelConfig config = small_config(true);
  EngineOptions options = cached_options(dtype, GENERATE(Offload::kAll, Offload::kNone));
  options.cache_tokens = 64;
  const Engine engine(*backend, config, options);
  const std::vector<MemoryLine> lines = engine.device_memory();
  CHECK(total_bytes(lines) == backend->device_bytes());
  CHECK(total_bytes(engine.host_memory()) == backend->host_bytes());
  const auto line = std::ranges::find(lines, "key/value cache", &MemoryLine::purpose);
  REQUIRE(line != lines.end());
  const auto elems = 2 * config.n_layers * config.n_kv_heads * config.head_dim * 64;
  CHECK(line->size_bytes == static_cast<std::size_t>(elems) * size_of(dtype));
}

TEST_CASE("the cache refuses what it cannot hold") {
  const auto backend = create_backend("cpu", {.threads = 1});
  const ModelConfig config = small_config(true);
  EngineOptions options = cached_options(DType::kF32, Offload::kAll);
  const auto made = [&] { Engine(*backend, config, options); };
  SECTION("more tokens than were planned") {
    Engine engine(*backend, config, options);
    engine.initialize(3);
    extend_by(engine, {38});
    CHECK(has(thrown([&] {
                engine.extend(std::vector<std::int32_t>{1, 2, 3});
              }),
              "3 ids after 38 in the cache: expected 1 to 2, the cache was planned for 40 tokens"));
    CHECK(has(thrown([&] { engine.extend(std::vector<std::int32_t>{61}); }), "token 61: expected 0 to 60"));
    CHECK(has(thrown([&] { engine.extend({}); }), "0 ids after 38"));
    CHECK(engine.n_cached() == 38);
  }
  SECTION("more positions than the model has") {
    options.cache_tokens = 65;
    CHECK(has(thrown(made), "a cache of 65 tokens: the model has max_position_embeddings 64"));
  }
  SECTION("training") {
    options.training = true;
    CHECK(has(thrown(made), "a cache of 40 tokens: expected 0 or more, and 0 when training"));
  }
}

}  // namespace ferry::test
