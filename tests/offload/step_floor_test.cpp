// SPDX-License-Identifier: Apache-2.0
#include "offload/step_floor.h"

#include <fmt/core.h>

#include <cmath>
#include <string>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/op_cost.h"
#include "catch.h"
#include "core/simd.h"
#include "offload/engine_checks.h"

namespace ferry::test {
namespace {

std::string shape_of(const Op& op) {
  std::string text = op_name(op);
  const auto add = [&text](Access, const char* name, const TensorView& view) {
    if (view) text += fmt::format(" {} {}", name, view.describe());
  };
  std::visit([&add](const auto& each) { each.visit(add); }, op);
  return text;
}

std::vector<std::string>* seen = nullptr;

/// The real ops; products and attention leave their shapes in `seen`.
void run_seen(const Op& op, Scratch scratch, ThreadPool& pool) {
  if (seen != nullptr && op_flop(op) > 0) seen->push_back(shape_of(op));
  cpu::op_table(simd_level()).run(op, scratch, pool);
}

std::size_t scratch_of(const Op& op) { return cpu::op_table(simd_level()).scratch_bytes(op); }

constexpr cpu::OpTable kSeen{SimdLevel::kScalar, run_seen, scratch_of};

EngineOptions small_options() {
  EngineOptions options;
  options.batch_size = 2;
  options.seq_len = 9;
  options.vocab_chunk = 16;  // four chunks, the last of another size
  options.threads = 1;
  return options;
}

template <class Fn>
void for_each_value(const TensorView& view, Fn&& fn) {
  if (view.rank > 1 && !view.contiguous()) {
    for (std::int64_t i = 0; i < view.shape[0]; ++i) {
      TensorView row = view;
      row.data =
          static_cast<std::byte*>(view.data) + static_cast<std::size_t>(i * view.stride[0]) * size_of(view.dtype);
      --row.rank;
      for (int d = 0; d < row.rank; ++d) {
        const auto at = static_cast<std::size_t>(d);
        row.shape[at] = view.shape[at + 1];
        row.stride[at] = view.stride[at + 1];
      }
      for_each_value(row, fn);
    }
    return;
  }
  for (std::int64_t i = 0; i < view.elems(); ++i) {
    fn(view.dtype == DType::kF32 ? static_cast<const float*>(view.data)[i]
                                 : to_f32(static_cast<const Bf16*>(view.data)[i]));
  }
}

}  // namespace

TEST_CASE("the floor has exactly the products and attention of the engine's step") {
  const Variant variant = GENERATE(from_range(variants()));
  CAPTURE(variant.name);
  const bool tied = GENERATE(true, false);
  const auto backend = cpu::create_cpu_backend(kSeen, cpu::Launch::kInline, {.threads = 1});
  const ModelConfig config = small_config(tied);
  const EngineOptions options = variant.of(small_options());
  std::vector<std::string> of_step;
  {
    Engine engine(*backend, config, options);
    engine.initialize(5);
    seen = &of_step;
    engine.train_step(random_batch(config, 2, 9, 0), 1e-3);
    seen = nullptr;
  }
  const StepFloor floor(*backend, config, options);
  std::vector<std::string> of_floor;
  double flop = 0;
  for (const Op& op : floor.ops()) {
    of_floor.push_back(shape_of(op));
    flop += op_flop(op);
  }
  CHECK(of_floor == of_step);
  CHECK(floor.flop() == flop);
}

TEST_CASE("parts of the floor add up to it, and run alone") {
  const auto backend = create_backend("cpu", {.threads = 1});
  StepFloor floor(*backend, small_config(true), small_options());
  double flop = 0;
  for (const FloorPart part : {FloorPart::kProducts, FloorPart::kAttentionForward, FloorPart::kAttentionBackward}) {
    CHECK(floor.flop(part) > 0);
    CHECK(floor.run(0, part).size() == 1);
    flop += floor.flop(part);
  }
  CHECK(flop == Approx(floor.flop()).epsilon(1e-12));
  // The scores are made again: ten FLOP against four, for a forward pass that runs twice.
  CHECK(floor.flop(FloorPart::kAttentionBackward) == 1.25 * floor.flop(FloorPart::kAttentionForward));
}

TEST_CASE("the floor's values stay in range, however often its ops run") {
  const auto backend = create_backend("cpu", {.threads = 1});
  StepFloor floor(*backend, small_config(false), small_options());
  const auto largest = [&] {
    float most = 0;
    const auto look = [&most](Access, const char* name, const TensorView& view) {
      if (!view) return;
      for_each_value(view, [&](float value) {
        INFO(name);
        if (!std::isfinite(value)) FAIL("not finite");
        most = std::max(most, std::abs(value));
      });
    };
    for (const Op& op : floor.ops()) {
      std::visit([&look](const auto& each) { each.visit(look); }, op);
    }
    return most;
  };
  CHECK(floor.run(0).size() == 1);
  const float first = largest();
  CHECK(first > 0.5F);
  for (int i = 0; i < 5; ++i) floor.run(0);
  CHECK(largest() == first);
}

TEST_CASE("the floor runs for the time given and frees its memory") {
  const auto backend = create_backend("cpu", {.threads = 1});
  {
    StepFloor floor(*backend, small_config(true), small_options());
    CHECK(floor.run(0.02).size() > 1);
    CHECK(backend->device_bytes() > 0);
  }
  CHECK(backend->device_bytes() == 0);
  CHECK(backend->host_bytes() == 0);
}

}  // namespace ferry::test
