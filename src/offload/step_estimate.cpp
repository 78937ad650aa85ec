// SPDX-License-Identifier: Apache-2.0
// Counts of work over rates.
#include "offload/step_estimate.h"

#include <algorithm>

#include "model/model_flop.h"
#include "offload/step_traffic.h"

namespace ferry {
namespace {

constexpr double kShareOfHidden = 1.0 / 16;

/// FLOP of attention's backward pass for each of its forward pass: it makes the scores again (op_flop).
constexpr double kAttentionBackward = 2.5;

/// FLOP that backward spends on logits which it makes again: all but those of the last chunk's last rows.
double repeated_logits_flop(const StepPlan& plan) {
  if (plan.buffers.head_mode() != HeadMode::kChunks) return 0;
  const EngineOptions& options = plan.options;
  const LlamaShape batch(plan.config, options.max_sequences(), options.seq_len);
  const Segment& last = plan.parameters.segment(plan.parameters.head_segment(plan.parameters.n_head_segments() - 1));
  const std::int64_t fresh = plan.buffers.head_rows(batch).back().count * last.n_rows;
  return 2 * static_cast<double>(batch.C) * static_cast<double>(batch.N() * batch.V - fresh);
}

}  // namespace

const char* StepForecast::bound() const {
  const double most = std::max({device_s, host_s, h2d_s, d2h_s, clipped_s});
  if (most == clipped_s) return "AdamW after backward (grad_clip)";
  if (most == device_s) return "the device";
  if (most == host_s) return "host memory";
  return most == h2d_s ? "copies to the device" : "copies to the host";
}

StepEstimate::StepEstimate(const StepPlan& base, const MachineRates& rates)
    : rates_(rates), clips_(base.options.grad_clip > 0) {
  count_arithmetic(base);
  count_bytes(base);
}

void StepEstimate::count_arithmetic(const StepPlan& base) {
  const EngineOptions& options = base.options;
  const ModelConfig& config = base.config;
  const auto flop = [&options](const ModelConfig& model) {
    return model_flop(model, options.max_sequences(), options.seq_len);
  };
  const double attention = attention_forward_flop(config, options.max_sequences(), options.seq_len);
  ModelConfig headless = config;
  headless.vocab_size = 0;
  const auto n_layers = static_cast<double>(config.n_layers);
  const auto rows = static_cast<double>(options.max_sequences() * options.seq_len);
  const double down = 2 * rows * static_cast<double>(config.hidden_size * config.intermediate_size);
  const double gate_up = options.mlp_cut.cuts() ? 2 * down : 0;  // which backward makes part by part
  const double layer = (flop(headless) / 3 - attention) / n_layers;
  recompute_ = {.products_flop = layer - (options.recompute == Recompute::kFull ? 0 : down + gate_up),
                .attention_forward_flop = attention / n_layers};
  forward_ = {.products_flop = flop(config) / 3 - attention, .attention_forward_flop = attention};
  std::int64_t n_recomputed = 0;
  for (std::int64_t i = 0; i < config.n_layers; ++i) n_recomputed += base.buffers.keeps(i) ? 0 : 1;
  const auto again = static_cast<double>(n_recomputed);
  step_ = {.products_flop = 3 * forward_.products_flop + again * recompute_.products_flop + n_layers * gate_up +
                            repeated_logits_flop(base),
           .attention_forward_flop = attention + again * recompute_.attention_forward_flop,
           .attention_backward_flop = kAttentionBackward * attention};
}

void StepEstimate::count_bytes(const StepPlan& base) {
  const StepTraffic traffic = step_traffic(base);
  h2d_bytes_ = static_cast<double>(total_bytes(traffic.h2d));
  d2h_bytes_ = static_cast<double>(total_bytes(traffic.d2h));
  adamw_host_bytes_ = static_cast<double>(traffic.adamw_host_bytes);
  adamw_device_bytes_ = static_cast<double>(traffic.adamw_device_bytes);
  const std::size_t elem_bytes = size_of(base.options.dtype);
  const auto elems = static_cast<double>(base.parameters.segment(base.parameters.layer_segment(0)).elems);
  layer_bytes_ = elems * static_cast<double>(elem_bytes);
  const Segment& chunk = base.parameters.segment(base.parameters.head_segment(0));
  chunk_bytes_ = static_cast<double>(chunk.elems) * static_cast<double>(elem_bytes);
  layer_update_bytes_ = elems * static_cast<double>(adamw_elem_bytes(base.arrays) + elem_bytes);
}

double StepEstimate::seconds(const Arithmetic& work) const {
  return work.products_flop / rates_.products_flop_s + work.attention_forward_flop / rates_.attention_forward_flop_s +
         work.attention_backward_flop / rates_.attention_backward_flop_s;
}

StepForecast StepEstimate::forecast(const More& more) const {
  const auto state = static_cast<double>(more.state_layers);
  // A layer on the device saves two trips; one more slot holds a chunk, and an own place a layer, for the second.
  const double h2d_bytes = h2d_bytes_ - (2 * state + static_cast<double>(more.weight_layers)) * layer_bytes_ -
                           static_cast<double>(more.weight_slots) * chunk_bytes_;
  const double d2h_bytes = d2h_bytes_ - state * layer_bytes_;
  StepForecast step;
  step.adamw_bytes = adamw_host_bytes_ - state * layer_update_bytes_;
  step.copied_bytes = h2d_bytes + d2h_bytes;
  const double compute_s = seconds(step_) - static_cast<double>(more.keep_layers) * seconds(recompute_);
  step.device_s = compute_s + (adamw_device_bytes_ + state * layer_update_bytes_) / rates_.device_bytes_s;
  step.host_s =
      std::max((step.adamw_bytes + step.copied_bytes) / rates_.host_bytes_s, step.adamw_bytes / rates_.adamw_bytes_s);
  step.d2h_s = d2h_bytes / rates_.d2h_both_bytes_s;
  // Gradients go home while weights come, which are more: what comes in that time comes slower.
  const double slowed_bytes = std::min(h2d_bytes, step.d2h_s * rates_.h2d_both_bytes_s);
  step.h2d_s = (h2d_bytes + slowed_bytes * (rates_.h2d_bytes_s / rates_.h2d_both_bytes_s - 1)) / rates_.h2d_bytes_s;
  if (clips_) step.clipped_s = compute_s - seconds(forward_) + step.adamw_bytes / rates_.adamw_bytes_s;
  const double sum = step.device_s + step.host_s + step.h2d_s + step.d2h_s;
  step.total_s = std::max({step.device_s, step.host_s, step.h2d_s, step.d2h_s, step.clipped_s}) + sum * kShareOfHidden;
  return step;
}

}  // namespace ferry
