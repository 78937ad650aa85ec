// SPDX-License-Identifier: Apache-2.0
// Packing buffers by lifetime.
#include "offload/memory_plan.h"

#include "catch.h"
#include "core/rng.h"

namespace ferry {

TEST_CASE("buffers that share a phase never overlap, others may") {
  MemoryPlan plan;
  const auto a = plan.add("a", 1000, {Phase::kForwardMlp});
  const auto b = plan.add("b", 600, {Phase::kHead});
  const auto c = plan.add("c", 300, {Phase::kForwardMlp, Phase::kHead});
  plan.pack();
  CHECK(plan.offset(a) == 0);
  CHECK(plan.offset(b) == 0);
  CHECK(plan.offset(c) == 1024);
  CHECK(plan.arena_bytes() == 1024 + 512);
}

TEST_CASE("without reuse no buffer shares memory, and one of no phase still takes none") {
  MemoryPlan plan(MemoryPlan::Reuse::kNever);
  const auto a = plan.add("a", 1000, {Phase::kForwardMlp});
  const auto b = plan.add("b", 600, {Phase::kHead});
  plan.add("never", 5000, {});
  plan.pack();
  CHECK(plan.offset(a) == 0);
  CHECK(plan.offset(b) == 1024);
  CHECK(plan.arena_bytes() == 1024 + 768);
}

TEST_CASE("random buffers are packed without overlap and the peak's lines add up") {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const CounterRng rng(seed, "plan");
    MemoryPlan plan;
    std::vector<PhaseSet> phases;
    for (std::uint64_t i = 0; i < 20; ++i) {
      PhaseSet set({});
      for (int phase = 0; phase < kPhases; ++phase) {
        if (rng.bits(100 * i + static_cast<std::uint64_t>(phase)) % 3 == 0)
          set = set | PhaseSet{static_cast<Phase>(phase)};
      }
      phases.push_back(set);
      plan.add("buffer " + std::to_string(i % 4), rng.bits(100 * i + 50) % 5000, set);
    }
    plan.pack();
    for (int i = 0; i < 20; ++i) {
      CHECK(plan.offset(i) % 256 == 0);
      CHECK(plan.offset(i) + plan.size_bytes(i) <= plan.arena_bytes());
      for (int j = 0; j < i; ++j) {
        if (!phases[static_cast<std::size_t>(i)].overlaps(phases[static_cast<std::size_t>(j)])) continue;
        const bool apart = plan.offset(i) + plan.size_bytes(i) <= plan.offset(j) ||
                           plan.offset(j) + plan.size_bytes(j) <= plan.offset(i);
        CHECK(apart);
      }
    }
    std::size_t total = 0;
    for (const MemoryLine& line : plan.peak_lines()) total += line.size_bytes;
    CHECK(total == plan.arena_bytes());
  }
}

TEST_CASE("buffers that live through all phases cut no gap in two") {
  MemoryPlan plan;
  plan.add("passing", 4096, {Phase::kHead});
  plan.add("lasting", 2048, PhaseSet::all());
  plan.add("passing", 1024, {Phase::kForwardMlp});
  plan.add("passing", 3072, {Phase::kForwardMlp});
  plan.pack();
  CHECK(plan.arena_bytes() == 4096 + 2048);
}

TEST_CASE("long-lived buffers are placed first where that takes less") {
  MemoryPlan plan;
  plan.add("short", 6144, {Phase::kForwardMlp});
  plan.add("short", 4096, {Phase::kHead});
  plan.add("long", 3072, {Phase::kForwardMlp, Phase::kHead});  // by size at 6144: it leaves no place for the next
  plan.add("short", 2560, {Phase::kHead});
  plan.pack();
  CHECK(plan.arena_bytes() == 4096 + 3072 + 2560);
}

TEST_CASE("tens of thousands of kept activations are packed at once") {
  MemoryPlan plan;
  for (int i = 0; i < 50000; ++i) plan.add("kept", 512, PhaseSet::all());
  plan.pack();
  CHECK(plan.arena_bytes() == std::size_t{50000} * 512);
}

TEST_CASE("a buffer of no phase takes no memory") {
  MemoryPlan plan;
  const auto id = plan.add("never", 4096, PhaseSet({}));
  plan.pack();
  CHECK(plan.size_bytes(id) == 0);
  CHECK(plan.arena_bytes() == 0);
}

}  // namespace ferry
