// SPDX-License-Identifier: Apache-2.0
// The timeline of a step: which spans there are, on which lane, in which order.
#include "offload/timeline.h"

#include <algorithm>
#include <map>

#include "catch.h"
#include "offload/tiny_model.h"

namespace ferry::test {
namespace {

constexpr std::int64_t kFirst = 1;  // steps that are noted
constexpr std::int64_t kNoted = 2;
constexpr double kClockErrorUs = 20;  // between events and the host's clock where calls run at once

EngineOptions several_pieces_options() {
  EngineOptions options;
  options.dtype = DType::kF32;
  options.batch_size = 2;
  options.seq_len = 8;
  options.vocab_chunk = 16;
  options.threads = 1;
  options.piece_bytes = 4096;
  return options;
}

std::vector<TimelineSpan> traced(const std::string& backend_name, const EngineOptions& options, bool tied = true) {
  const auto backend = create_backend(backend_name, {.threads = 1});
  const ModelConfig config = small_config(tied);
  Engine engine(*backend, config, options);
  engine.initialize(1);
  const auto step = [&](std::uint64_t i) { engine.train_step(random_batch(config, 2, 8, i), 1e-3); };
  for (std::uint64_t i = 0; i < kFirst; ++i) step(i);
  engine.start_trace(kNoted);
  for (std::uint64_t i = kFirst; i < kFirst + kNoted + 1; ++i) step(i);
  return engine.take_trace();
}

using Spans = std::vector<TimelineSpan>;

Spans select(const Spans& spans, Lane lane, std::int64_t step, const std::string& prefix = "") {
  Spans found;
  std::ranges::copy_if(spans, std::back_inserter(found), [&](const TimelineSpan& span) {
    return span.lane == lane && span.step == step && span.name.starts_with(prefix);
  });
  return found;
}

double end_us(const TimelineSpan& span) { return span.begin_us + span.duration_us; }

/// Spans by what follows `prefix`: "layer 3, piece 1".
std::multimap<std::string, TimelineSpan> by_target(const Spans& spans, const std::string& prefix) {
  std::multimap<std::string, TimelineSpan> result;
  for (const TimelineSpan& span : spans) result.emplace(span.name.substr(prefix.size()), span);
  return result;
}

std::vector<std::string> names(const Spans& spans) {
  std::vector<std::string> result;
  for (const TimelineSpan& span : spans) result.push_back(span.name);
  return result;
}

}  // namespace

TEST_CASE("the compute lane follows the schedule of a step") {
  for (const char* name : {"cpu", "cpu:sync"}) {
    const Spans spans = traced(name, several_pieces_options());
    for (std::int64_t step = kFirst; step < kFirst + kNoted; ++step) {
      std::vector<std::string> ops = names(select(spans, Lane::kCompute, step));
      std::erase_if(ops, [](const std::string& text) { return text.starts_with("norms "); });
      CHECK(ops == std::vector<std::string>{"forward layer 0", "forward layer 1", "forward layer 2",
                                            "forward final norm", "forward head chunk 0", "forward head chunk 1",
                                            "forward head chunk 2", "forward head chunk 3", "loss",
                                            "backward head chunk 3", "backward head chunk 2", "backward head chunk 1",
                                            "backward head chunk 0", "backward final norm", "backward layer 2",
                                            "backward layer 1", "backward layer 0"});
    }
  }
}

TEST_CASE("every copy and every update has its span") {
  const Spans spans = traced("cpu", several_pieces_options());
  const std::size_t n_gradients = select(spans, Lane::kD2h, kFirst, "gradient ").size() - 1;  // that of the input
  CHECK(n_gradients == select(spans, Lane::kOptimizer, kFirst, "AdamW ").size() - 1);         // the batch's rows
  CHECK(select(spans, Lane::kD2h, kFirst, "gradient layer 1, piece 2").size() == 1);
  CHECK(select(spans, Lane::kOptimizer, kFirst, "AdamW layer 1, piece 2").size() == 1);
  CHECK(select(spans, Lane::kH2d, kFirst, "weights layer 0, piece 0").size() == 2);  // forward and backward
  CHECK(select(spans, Lane::kD2h, kFirst, "loss").size() == 1);
  CHECK(select(spans, Lane::kH2d, kFirst, "embedding rows").size() == 1);
  CHECK(select(spans, Lane::kLauncher, kFirst, "launch step").size() == 1);
}

TEST_CASE("steps that were not asked for are not noted") {
  for (const TimelineSpan& span : traced("cpu", several_pieces_options())) {
    CHECK(span.step >= kFirst);
    CHECK(span.step < kFirst + kNoted);
  }
}

TEST_CASE("spans of a lane do not overlap, and the launcher's waits lie in its steps") {
  for (const char* name : {"cpu", "cpu:sync", "trace:cpu,slow=copies"}) {
    INFO(name);
    const Spans spans = traced(name, several_pieces_options());
    for (std::size_t i = 1; i < spans.size(); ++i) {
      CHECK(spans[i].duration_us >= 0);
      const TimelineSpan& before = spans[i - 1];
      if (before.lane != spans[i].lane) continue;
      INFO(before.name << ", " << spans[i].name);
      const bool apart = spans[i].begin_us >= end_us(before);
      const bool inside = before.lane == Lane::kLauncher && end_us(spans[i]) <= end_us(before);
      CHECK((apart || inside));
    }
  }
}

TEST_CASE("an update follows its gradient, the next fetch follows the update") {
  const bool tied = GENERATE(true, false);
  const double grad_clip = GENERATE(0.0, 1.0);
  EngineOptions options = several_pieces_options();
  options.grad_clip = grad_clip;
  const Spans spans = traced("cpu:sync", options, tied);
  const auto gradients = by_target(select(spans, Lane::kD2h, kFirst, "gradient "), "gradient ");
  const auto fetches = by_target(select(spans, Lane::kH2d, kFirst + 1, "weights "), "weights ");
  const Spans rows = select(spans, Lane::kOptimizer, kFirst, "AdamW of the batch's rows");
  REQUIRE(rows.size() == 1);
  for (const auto& [target, update] : by_target(select(spans, Lane::kOptimizer, kFirst, "AdamW "), "AdamW ")) {
    INFO(target);
    const auto gradient = gradients.find(target);
    if (gradient != gradients.end()) CHECK(update.begin_us >= end_us(gradient->second) - kClockErrorUs);
    const auto [first, last] = fetches.equal_range(target);
    for (auto fetch = first; fetch != last; ++fetch) {
      CHECK(fetch->second.begin_us >= end_us(update) - kClockErrorUs);
      if (tied && target.starts_with("head")) {
        CHECK(fetch->second.begin_us >= end_us(rows.front()) - kClockErrorUs);
      }
    }
  }
}

TEST_CASE("what lives on the device is updated on the compute lane") {
  EngineOptions options = several_pieces_options();
  options.offload = Offload::kNone;
  const Spans spans = traced("cpu", options);
  CHECK(select(spans, Lane::kCompute, kFirst, "AdamW layer").size() == 3);
  CHECK(select(spans, Lane::kH2d, kFirst, "weights").empty());
}

TEST_CASE("tracing changes no bit, and a second trace forgets the first") {
  const auto backend = create_backend("cpu", {.threads = 1});
  const ModelConfig config = small_config(true);
  const auto run = [&](bool trace) {
    Engine engine(*backend, config, several_pieces_options());
    engine.initialize(1);
    for (std::uint64_t i = 0; i < 3; ++i) {
      if (trace) engine.start_trace(1);
      engine.train_step(random_batch(config, 2, 8, i), 1e-3);
    }
    for (const TimelineSpan& span : engine.take_trace()) CHECK(span.step == 2);
    return snapshot(engine, ParameterArray::kWeight);
  };
  CHECK(run(true) == run(false));
}

}  // namespace ferry::test
