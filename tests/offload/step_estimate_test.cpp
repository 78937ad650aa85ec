// SPDX-License-Identifier: Apache-2.0
// What a step is expected to take, against counts of its ops and numbers by hand.
#include "offload/step_estimate.h"

#include <string>

#include "catch.h"
#include "offload/engine_checks.h"
#include "offload/memory_plan.h"
#include "offload/step_floor.h"
#include "offload/step_traffic.h"

namespace ferry::test {
namespace {

/// The model of the 1B experiment.
ModelConfig one_billion() {
  ModelConfig config;
  config.vocab_size = 128256;
  config.hidden_size = 2048;
  config.intermediate_size = 8192;
  config.n_layers = 16;
  config.n_heads = 32;
  config.n_kv_heads = 8;
  config.head_dim = 64;
  config.max_position_embeddings = 2048;
  config.tie_word_embeddings = true;
  return config;
}

struct Fixture {
  std::unique_ptr<Backend> backend = create_backend("cpu", {.threads = 1});
  EngineOptions options;
  MachineRates rates;

  Fixture() {
    options.batch_size = 4;
    options.seq_len = 2048;
    options.optimizer_state = OptimizerState::kBf16;
  }
  StepForecast forecast(const StepEstimate::More& more = {}) const {
    return StepEstimate(StepPlan(one_billion(), options, *backend), rates).forecast(more);
  }
};

}  // namespace

TEST_CASE("the arithmetic of an estimate is that of the floor") {
  const Variant variant = GENERATE(from_range(variants()));
  CAPTURE(variant.name);
  EngineOptions small;
  small.batch_size = 2;
  small.seq_len = 9;
  small.vocab_chunk = 16;
  small.threads = 1;
  const EngineOptions options = variant.of(small);
  const auto backend = create_backend("cpu", {.threads = 1});
  const ModelConfig config = small_config(true);
  const MachineRates one_a_second{
      .products_flop_s = 1, .attention_forward_flop_s = 1, .attention_backward_flop_s = 1, .device_bytes_s = 1e300};
  const StepForecast step = StepEstimate(StepPlan(config, options, *backend), one_a_second).forecast({});
  CHECK(step.device_s == Approx(StepFloor(*backend, config, options).flop()).epsilon(1e-12));
}

TEST_CASE("a 1B step is bound by host memory on the machine of the defaults") {
  const Fixture f;
  const StepForecast step = f.forecast();
  CHECK(step.adamw_bytes == 14.0 * 1'235'814'400);  // bf16 weight and moments read and written, gradient read
  const double weights = 2.0 * 1'235'814'400;
  CHECK(step.copied_bytes > 2.7 * weights);  // up for each pass, gradients down
  CHECK(step.copied_bytes < 3.1 * weights);
  CHECK(step.host_s == Approx((step.adamw_bytes + step.copied_bytes) / 160e9));
  CHECK(step.h2d_s + step.d2h_s == Approx(step.copied_bytes / 50e9));
  CHECK(step.device_s == Approx(0.125).epsilon(0.03));  // 81 TFLOP
  CHECK(step.total_s == Approx(step.host_s + (step.device_s + step.host_s + step.h2d_s + step.d2h_s) / 16));
  CHECK(std::string(step.bound()) == "host memory");
  CHECK(step.clipped_s == 0);
}

TEST_CASE("each rate has its part") {
  Fixture f;
  const StepForecast before = f.forecast();
  f.rates.host_bytes_s = 320e9;
  f.rates.adamw_bytes_s = 300e9;
  CHECK(f.forecast().host_s == Approx((before.adamw_bytes + before.copied_bytes) / 320e9));
  f.rates.adamw_bytes_s = 80e9;  // few threads: copies find room beside AdamW
  CHECK(f.forecast().host_s == Approx(before.adamw_bytes / 80e9));
  f.rates.adamw_bytes_s = f.rates.host_bytes_s = 1e13;
  CHECK(std::string(f.forecast().bound()) == "the device");
  f.rates.products_flop_s = 1e18;
  const double attention = f.forecast().device_s;
  f.rates.attention_forward_flop_s *= 2;
  const double forward = 2 * (attention - f.forecast().device_s);
  f.rates.attention_backward_flop_s *= 2;
  CHECK(f.forecast().device_s == Approx(attention / 2).epsilon(0.05));
  CHECK(forward == Approx(attention * 8 / 18).epsilon(0.05));  // run twice with 4 FLOP, against 10 backward
}

TEST_CASE("copies to the device are slowed while copies to the host run") {
  Fixture f;
  const double down = f.forecast().d2h_s * 50e9;
  const double up = f.forecast().h2d_s * 50e9;
  f.rates.h2d_both_bytes_s = 25e9;
  f.rates.d2h_both_bytes_s = 40e9;
  const StepForecast step = f.forecast();
  CHECK(step.d2h_s == Approx(down / 40e9));
  const double beside = down / 40e9 * 25e9;
  CHECK(step.h2d_s == Approx(beside / 25e9 + (up - beside) / 50e9));
  f.rates.d2h_both_bytes_s = 1e9;
  CHECK(f.forecast().h2d_s == Approx(up / 25e9));  // all of them
  CHECK(std::string(f.forecast().bound()) == "copies to the host");
  f.rates.d2h_both_bytes_s = 40e9;
  f.rates.h2d_bytes_s = f.rates.h2d_both_bytes_s = 1e9;
  CHECK(std::string(f.forecast().bound()) == "copies to the device");
}

TEST_CASE("with clipping AdamW follows backward") {
  Fixture f;
  const StepForecast free = f.forecast();
  f.options.grad_clip = 1;
  const StepForecast step = f.forecast();
  CHECK(std::string(step.bound()) == "AdamW after backward (grad_clip)");
  CHECK(step.clipped_s > 0.7 * free.device_s + step.adamw_bytes / 160e9);
  CHECK(step.clipped_s < 0.8 * free.device_s + step.adamw_bytes / 160e9);
}

TEST_CASE("layers on the device trade host memory for device memory") {
  Fixture f;
  const StepForecast before = f.forecast();
  const StepForecast more = f.forecast({.state_layers = 4, .keep_layers = 4});
  const double layer = 60'821'504;  // parameters
  CHECK(more.adamw_bytes == Approx(before.adamw_bytes - 4 * 14 * layer));
  CHECK(more.copied_bytes == Approx(before.copied_bytes - 4 * 3 * 2 * layer));
  CHECK(more.device_s < before.device_s);
  CHECK(f.forecast({.state_layers = 4}).device_s == Approx(before.device_s + 4 * 14 * layer / 3.8e12));
  f.options.offload = Offload::kNone;
  CHECK(f.forecast().adamw_bytes == 0);
}

}  // namespace ferry::test
