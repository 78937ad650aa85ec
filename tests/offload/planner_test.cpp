// SPDX-License-Identifier: Apache-2.0
// Budgets are obeyed, pins hold, and what changes no arithmetic changes no bit.
#include "offload/planner.h"

#include <algorithm>

#include "catch.h"
#include "offload/step_estimate.h"
#include "offload/step_plan.h"
#include "offload/tiny_model.h"
#include "thrown.h"

namespace ferry::test {
namespace {

using Kind = DeviceBudget::Kind;

/// Wide enough for cuts of the MLP and of the vocabulary.
ModelConfig wide_config() {
  ModelConfig config = small_config(true);
  config.vocab_size = 4100;
  config.intermediate_size = 1100;
  config.n_layers = 6;
  return config;
}

PlanRequest request_of(Kind kind, std::size_t bytes = 0) {
  PlanRequest request;
  request.options.batch_size = 2;
  request.options.seq_len = 24;
  request.options.threads = 2;
  request.options.piece_bytes = 10'000;
  request.free = {.weight_slots = true,
                  .vocab_chunk = true,
                  .resident_state_layers = true,
                  .resident_layers = true,
                  .residuals = true,
                  .recompute = true,
                  .head = true,
                  .mlp_cut = true,
                  .offload = true};
  request.device = {kind, bytes, "gpu_memory = " + std::to_string(bytes) + "B"};
  return request;
}

struct Fixture {
  std::unique_ptr<Backend> backend = create_backend("cpu", {.threads = 1});
  ModelConfig config = wide_config();

  PlanChoice choose(const PlanRequest& request) const { return choose_plan(config, request, *backend); }
  StepPlan plan(const EngineOptions& options) const { return {config, options, *backend}; }
  std::size_t arena(const EngineOptions& options) const { return plan(options).device.memory.arena_bytes(); }
  std::size_t least() const { return arena(choose(request_of(Kind::kMin)).options); }
  std::size_t default_bytes() const { return arena(request_of(Kind::kNone).options); }
};

std::vector<std::byte> trained(const ModelConfig& config, const EngineOptions& options) {
  const auto backend = create_backend("cpu", {.threads = 2});
  Engine engine(*backend, config, options);
  engine.initialize(7);
  for (std::uint64_t step = 0; step < 2; ++step) engine.train_step(random_batch(config, 2, 24, step), 1e-2);
  return snapshot(engine, ParameterArray::kWeight);
}

}  // namespace

TEST_CASE("without a budget nothing is chosen") {
  const Fixture f;
  const PlanChoice choice = f.choose(request_of(Kind::kNone));
  CHECK(f.arena(choice.options) == f.default_bytes());
  CHECK(choice.options.resident_state_layers == 0);
  CHECK(choice.notes.empty());
}

TEST_CASE("every budget from the smallest plan on is obeyed, and a larger one never estimates a longer step") {
  const Fixture f;
  const std::size_t least = f.least();
  const std::size_t most = 4 * f.default_bytes();
  double before_s = 1e9;
  std::size_t notes_before = 9;
  for (int i = 0; i <= 60; ++i) {
    const std::size_t budget = least + (most - least) * static_cast<std::size_t>(i) / 60;
    CAPTURE(i, budget);
    const PlanChoice choice = f.choose(request_of(Kind::kBytes, budget));
    CHECK(f.arena(choice.options) <= budget);
    CHECK(choice.notes.size() <= notes_before);
    if (choice.notes.empty()) {
      const double estimate_s = StepEstimate(f.plan(choice.options), {}).forecast({}).total_s;
      CHECK(estimate_s <= before_s * 1.001);  // a saved fetch may be a shorter one than was thought
      before_s = std::min(before_s, estimate_s);
    }
    notes_before = choice.notes.size();
  }
}

TEST_CASE("the least is below the default, and a byte less does not work") {
  const Fixture f;
  const std::size_t least = f.least();
  CHECK(least < f.default_bytes());
  CHECK(f.choose(request_of(Kind::kMin)).notes.size() == 2);
  CHECK(f.arena(f.choose(request_of(Kind::kBytes, least)).options) == least);
  const std::string message = thrown([&] { f.choose(request_of(Kind::kBytes, least - 1)); });
  CAPTURE(message);
  CHECK(message.starts_with("memory: gpu_memory = " + std::to_string(least - 1) +
                            "B: the smallest plan of 2 x 24 tokens "));
  CHECK(message.find(std::to_string(least) + " bytes") != std::string::npos);
  CHECK(message.find("as given") == std::string::npos);
}

TEST_CASE("memory to spare holds whole layers and activations") {
  const Fixture f;
  const EngineOptions options = f.choose(request_of(Kind::kBytes, std::size_t{1} << 30)).options;
  CHECK(options.resident_state_layers == 6);
  CHECK(options.keep_layers == 6);
  CHECK(options.head == HeadMode::kLogits);
  CHECK(options.residuals == Residuals::kDevice);
  CHECK(!options.mlp_cut.cuts());
}

TEST_CASE("bits are the same under every budget that forces no other arithmetic") {
  const Fixture f;
  const std::int64_t accumulate = GENERATE(1, 2);
  const DType dtype = GENERATE(DType::kBf16, DType::kF32);
  CAPTURE(accumulate, to_string(dtype));
  const auto request = [=](Kind kind, std::size_t bytes) {
    PlanRequest result = request_of(kind, bytes);
    result.options.dtype = dtype;
    result.options.batch_size /= accumulate;
    result.options.accumulate = accumulate;
    return result;
  };
  const EngineOptions plain = request(Kind::kNone, 0).options;
  const std::vector<std::byte> reference = trained(f.config, plain);
  const std::size_t least = f.arena(f.choose(request(Kind::kMin, 0)).options);
  int n_trained = 0;
  for (const double factor : {0.8, 0.9, 1.0, 1.15, 1.4, 2.0, 3.0, 100.0}) {
    CAPTURE(factor);
    const auto budget = static_cast<std::size_t>(static_cast<double>(f.arena(plain)) * factor);
    if (budget < least) continue;
    const PlanChoice choice = f.choose(request(Kind::kBytes, budget));
    if (!choice.notes.empty()) continue;
    CHECK((trained(f.config, choice.options) == reference));
    ++n_trained;
  }
  CHECK(n_trained >= 5);
}

TEST_CASE("rates decide what a budget is spent on, never how it is met") {
  const Fixture f;
  PlanRequest slow_host = request_of(Kind::kBytes, 0);
  slow_host.rates.adamw_bytes_s = slow_host.rates.host_bytes_s = 1e6;
  PlanRequest slow_device = request_of(Kind::kBytes, 0);
  slow_device.rates.products_flop_s = slow_device.rates.attention_forward_flop_s = 1e6;
  const std::vector<std::byte> reference = trained(f.config, request_of(Kind::kNone).options);
  const std::size_t least = f.least();
  int n_different = 0;
  for (int i = 0; i < 8; ++i) {
    slow_host.device.bytes = slow_device.device.bytes = least + f.default_bytes() * static_cast<std::size_t>(i) / 5;
    CAPTURE(i, slow_host.device.bytes);
    const PlanChoice layers = f.choose(slow_host);
    const PlanChoice activations = f.choose(slow_device);
    CHECK(layers.options.resident_state_layers >= activations.options.resident_state_layers);
    CHECK(layers.options.keep_layers <= activations.options.keep_layers);
    CHECK(layers.notes == activations.notes);
    CHECK(layers.options.vocab_chunk == activations.options.vocab_chunk);
    CHECK(layers.options.mlp_cut.size == activations.options.mlp_cut.size);
    if (layers.options.keep_layers == activations.options.keep_layers || !layers.notes.empty()) continue;
    ++n_different;
    CHECK(trained(f.config, layers.options) == reference);
    CHECK(trained(f.config, activations.options) == reference);
  }
  CHECK(n_different >= 2);
}

TEST_CASE("pins hold under any budget, and an error names them") {
  const Fixture f;
  PlanRequest request = request_of(Kind::kMin);
  request.free = {};
  request.free.mlp_cut = true;
  request.options.weight_slots = 4;
  request.options.resident_state_layers = 1;
  request.options.keep_layers = 2;
  const EngineOptions least = f.choose(request).options;
  CHECK(least.weight_slots == 4);
  CHECK(least.resident_state_layers == 1);
  CHECK(least.resident_layers == 0);
  CHECK(least.keep_layers == 2);
  CHECK(least.residuals == Residuals::kDevice);
  CHECK(least.vocab_chunk == 0);
  CHECK(least.mlp_cut.cuts());
  request.device = {Kind::kBytes, std::size_t{1} << 30, "gpu_memory = 1GiB"};
  const EngineOptions most = f.choose(request).options;
  CHECK(f.arena(most) == f.arena(request.options));
  request.device.bytes = f.arena(least) - 1;
  const std::string message = thrown([&] { f.choose(request); });
  CAPTURE(message);
  CHECK(message.find("with residuals, vocab_chunk, recompute, resident_state_layers, weight_slots as given") !=
        std::string::npos);
}

TEST_CASE("an engine that does not train blames no pin of training") {
  const Fixture f;
  PlanRequest request = request_of(Kind::kBytes, 1000);
  request.free = {};
  request.options.grad_slots = 3;
  request.options.head = HeadMode::kLogits;
  request.options.keep_layers = 2;
  const auto refusal = [&] { return thrown([&] { f.choose(request); }); };
  CHECK(refusal().find("with residuals, mlp_chunk, vocab_chunk, recompute, grad_slots, head as given") !=
        std::string::npos);
  request.options.training = false;
  CHECK(refusal().ends_with("with mlp_chunk, vocab_chunk as given: raise gpu_memory, or lower batch_size or seq_len"));
}

TEST_CASE("a pinned MLP stays whole") {
  const Fixture f;
  PlanRequest request = request_of(Kind::kMin);
  request.free.mlp_cut = false;
  CHECK(!f.choose(request).options.mlp_cut.cuts());
}

TEST_CASE("plans that take too much host memory are passed over") {
  const Fixture f;
  int n_passed_over = 0;
  for (std::size_t budget = f.least(); budget < 4 * f.default_bytes(); budget += f.default_bytes() / 20) {
    PlanRequest request = request_of(Kind::kBytes, budget);
    const EngineOptions free_choice = f.choose(request).options;
    if (free_choice.residuals != Residuals::kHost || f.default_bytes() > budget) continue;
    request.host_bytes = f.plan(free_choice).host.memory.total_bytes() - 1;
    CHECK(f.plan(f.choose(request).options).host.memory.total_bytes() <= *request.host_bytes);
    ++n_passed_over;
  }
  CHECK(n_passed_over > 0);
}

TEST_CASE("a forward pass keeps as many layers on the device as fit") {
  const Fixture f;
  const auto layers_with = [&](std::size_t bytes) {
    PlanRequest request = request_of(Kind::kBytes, bytes);
    request.options.training = false;
    request.free.offload = false;
    const EngineOptions options = f.choose(request).options;
    CHECK(f.arena(options) <= bytes);
    CHECK_FALSE(options.training);
    return options.resident_state_layers;
  };
  PlanRequest plain = request_of(Kind::kMin);
  plain.options.training = false;
  CHECK(layers_with(f.arena(f.choose(plain).options)) == 0);
  CHECK(layers_with(std::size_t{64} << 20) == f.config.n_layers);
  EngineOptions two = f.choose(request_of(Kind::kNone)).options;
  two.training = false;
  two.resident_state_layers = 2;
  CHECK(layers_with(f.arena(two)) == 2);
}

namespace {

PlanRequest forward_request(Kind kind, std::size_t bytes = 0) {
  PlanRequest request = request_of(kind, bytes);
  request.options.training = false;
  request.options.batch_size = 1;
  request.options.cache_tokens = 50;
  return request;
}

std::int64_t fetched_elems(const StepPlan& plan) {
  std::int64_t elems = 0;
  for (const Segment& segment : plan.parameters.segments()) {
    if (plan.arrays.home_of(segment.offset) == Home::kHost) elems += segment.elems;
  }
  return elems;
}

}  // namespace

TEST_CASE("a forward-only engine lives on the device where nothing limits it or everything fits") {
  const Fixture f;
  const EngineOptions options = f.choose(forward_request(Kind::kNone)).options;
  CHECK(options.offload == Offload::kNone);
  CHECK(f.choose(forward_request(Kind::kBytes, f.arena(options))).options.offload == Offload::kNone);
  CHECK(f.choose(forward_request(Kind::kBytes, f.arena(options) - 1)).options.offload != Offload::kNone);
  PlanRequest pinned = forward_request(Kind::kNone);
  pinned.free.offload = false;
  CHECK(f.choose(pinned).options.offload == Offload::kAll);
}

TEST_CASE("a forward-only engine streams as few weights as its budget allows") {
  const Fixture f;
  const EngineOptions streamed = f.choose(forward_request(Kind::kMin)).options;
  CHECK(streamed.offload == Offload::kAll);
  CHECK(streamed.resident_state_layers == 0);
  const std::size_t least = f.arena(streamed);
  const std::size_t most = f.arena(f.choose(forward_request(Kind::kNone)).options);
  std::int64_t travels = fetched_elems(f.plan(streamed));
  for (std::size_t budget = least; budget < most; budget += (most - least) / 16) {
    CAPTURE(budget);
    const EngineOptions options = f.choose(forward_request(Kind::kBytes, budget)).options;
    CHECK(f.arena(options) <= budget);
    CHECK(fetched_elems(f.plan(options)) <= travels);
    travels = fetched_elems(f.plan(options));
  }
  const StepPlan plan = f.plan(streamed);
  // What does not fit travels, and makes room for two slots.
  CHECK(travels <= 3 * plan.parameters.segment(plan.parameters.layer_segment(0)).elems);
  const std::string message = thrown([&] { f.choose(forward_request(Kind::kBytes, least - 1)); });
  CAPTURE(message);
  CHECK(message.find("the smallest plan for 50 tokens takes") != std::string::npos);
  CHECK(message.find(": raise gpu_memory, or generate fewer tokens") != std::string::npos);
}

}  // namespace ferry::test
