// SPDX-License-Identifier: Apache-2.0
// The plan is what the engine allocates and moves, to the byte.
#include "offload/step_plan.h"

#include <algorithm>
#include <set>

#include "catch.h"
#include "offload/engine_checks.h"
#include "offload/step_traffic.h"
#include "thrown.h"

namespace ferry::test {
namespace {

struct Placement {
  const char* name;
  void (*apply)(EngineOptions&);
};

const std::vector<Placement>& placements() {
  static const std::vector<Placement> all = {
      {"all", [](EngineOptions&) {}},
      {"layers", [](EngineOptions& o) { o.offload = Offload::kLayers; }},
      {"none", [](EngineOptions& o) { o.offload = Offload::kNone; }},
      {"state of one layer, weights of the next",
       [](EngineOptions& o) {
         o.resident_state_layers = 1;
         o.resident_layers = 1;
       }},
      {"weights of all layers", [](EngineOptions& o) { o.resident_layers = 9; }},
      {"layers, state of one, clipping",
       [](EngineOptions& o) {
         o.offload = Offload::kLayers;
         o.resident_state_layers = 1;
         o.grad_clip = 0.5;
       }},
      {"no norms", [](EngineOptions& o) { o.check_finite = false; }},
      {"frozen embedding and layer, clipping",
       [](EngineOptions& o) {
         o.freeze = {"model.embed_tokens.*", "model.layers.1.*"};
         o.grad_clip = 0.5;
       }},
      {"many slots",
       [](EngineOptions& o) {
         o.weight_slots = 5;
         o.grad_slots = 3;
       }},
      {"residuals on the host", [](EngineOptions& o) { o.residuals = Residuals::kHost; }},
      {"forward only", [](EngineOptions& o) { o.training = false; }}};
  return all;
}

/// What the batch decides: rows of each distinct token, which the plan counts as if all differed.
std::int64_t rows_not_sent(const Batch& batch) {
  const std::set<std::int32_t> distinct(batch.inputs.begin(), batch.inputs.end());
  return std::ssize(batch.inputs) - std::ssize(distinct);
}

}  // namespace

TEST_CASE("the engine allocates what was planned, to the byte") {
  const Placement placement = GENERATE(from_range(placements()));
  const Variant variant = GENERATE(from_range(variants()));
  const auto dtype = GENERATE(DType::kF32, DType::kBf16);
  const bool tied = GENERATE(true, false);
  CAPTURE(placement.name, variant.name, to_string(dtype), tied);
  const auto backend = create_backend("cpu", {.threads = 1});
  EngineOptions options = variant.of(several_pieces(dtype, OptimizerState::kF32));
  placement.apply(options);
  const StepPlan plan(small_config(tied), options, *backend);
  CHECK(backend->device_bytes() == 0);
  CHECK(backend->host_bytes() == 0);
  const Engine engine(*backend, small_config(tied), options);
  CHECK(plan.device.memory.arena_bytes() == backend->device_bytes());
  CHECK(plan.host.memory.total_bytes() == backend->host_bytes());
  CHECK(total_bytes(engine.device_memory()) == backend->device_bytes());
  CHECK(total_bytes(engine.host_memory()) == backend->host_bytes());
}

TEST_CASE("a step moves what was planned") {
  const Placement placement = GENERATE(from_range(placements()));
  const Variant variant = GENERATE(from_range(variants()));
  const bool tied = GENERATE(true, false);
  CAPTURE(placement.name, variant.name, tied);
  const auto backend = create_backend("cpu", {.threads = 2});
  EngineOptions options = variant.of(several_pieces(DType::kBf16, OptimizerState::kF32));
  placement.apply(options);
  if (!options.training) return;
  const ModelConfig config = small_config(tied);
  const StepPlan plan(config, options, *backend);
  Engine engine(*backend, config, options);
  engine.initialize(7);
  const Batch batch = random_batch(config, options.max_sequences(), options.seq_len, 1);
  engine.train_step(batch, 1e-2);
  engine.finish();  // so that no fetch finds its weights late
  const StepStats stats = engine.stats(engine.train_step(batch, 1e-2));
  CHECK(backend->device_bytes() == plan.device.memory.arena_bytes());  // a step allocates nothing
  CHECK(backend->host_bytes() == plan.host.memory.total_bytes());
  const StepTraffic traffic = step_traffic(plan);
  const std::int64_t missing = rows_not_sent(batch);
  const bool norm_rows = plan.table_is_on(Home::kDevice) && plan.takes_norms() && options.freeze.empty();
  CHECK(stats.h2d_bytes == static_cast<std::int64_t>(total_bytes(traffic.h2d)) - missing * 4);
  CHECK(stats.d2h_bytes ==
        static_cast<std::int64_t>(total_bytes(traffic.d2h)) - (norm_rows ? missing * config.hidden_size * 2 : 0));
}

TEST_CASE("AdamW's traffic is that of the trained parameters, where they live") {
  const auto backend = create_backend("cpu", {.threads = 1});
  const ModelConfig config = small_config(true);
  const auto traffic_of = [&](DType dtype, OptimizerState state, Offload offload) {
    EngineOptions options = several_pieces(dtype, state);
    options.offload = offload;
    return step_traffic(StepPlan(config, options, *backend));
  };
  const auto n = static_cast<std::size_t>(ParameterTable(config, 16).n_parameters());
  CHECK(traffic_of(DType::kBf16, OptimizerState::kF32, Offload::kAll).adamw_host_bytes == n * 26);
  CHECK(traffic_of(DType::kBf16, OptimizerState::kBf16, Offload::kAll).adamw_host_bytes == n * 14);
  CHECK(traffic_of(DType::kBf16, OptimizerState::kMixed, Offload::kAll).adamw_host_bytes == n * 18);
  CHECK(traffic_of(DType::kF32, OptimizerState::kF32, Offload::kAll).adamw_host_bytes == n * 28);
  CHECK(traffic_of(DType::kF32, OptimizerState::kF32, Offload::kAll).adamw_device_bytes == 0);
  CHECK(traffic_of(DType::kBf16, OptimizerState::kF32, Offload::kNone).adamw_host_bytes == 0);
  const ModelConfig untied = small_config(false);  // its embedding has gradients for the batch's rows alone
  const EngineOptions options = several_pieces(DType::kBf16, OptimizerState::kF32);
  const ParameterTable table(untied, 16);
  CHECK(step_traffic(StepPlan(untied, options, *backend)).adamw_host_bytes ==
        static_cast<std::size_t>(table.n_parameters() * 26 - table.parameters().front().elems * 2));
  CHECK(traffic_of(DType::kBf16, OptimizerState::kF32, Offload::kNone).adamw_device_bytes == n * 26);
}

TEST_CASE("a plan of a model that no machine holds takes no memory") {
  ModelConfig config = small_config(false);
  config.vocab_size = 128256;
  config.hidden_size = 16384;
  config.intermediate_size = 53248;
  config.n_layers = 126;
  config.n_heads = 128;
  config.n_kv_heads = 8;
  config.head_dim = 128;
  config.max_position_embeddings = 131072;
  EngineOptions options;
  options.seq_len = 131072;
  const auto backend = create_backend("cpu", {.threads = 1});
  const StepPlan plan(config, options, *backend);
  CHECK(plan.host.memory.total_bytes() > std::size_t{4} << 40);
  CHECK(backend->host_bytes() == 0);
}

}  // namespace ferry::test
