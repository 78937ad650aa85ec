// SPDX-License-Identifier: Apache-2.0
// Counts of work over rates.
#include "offload/step_estimate.h"

#include <algorithm>

#include "model/model_flop.h"
#include "offload/step_traffic.h"

namespace ferry {
namespace {

constexpr double kFlopPerSecond = 650e12;
constexpr double kHostBytesPerSecond = 160e9;
constexpr double kBusBytesPerSecond = 50e9;
constexpr double kDeviceBytesPerSecond = 3.8e12;
constexpr double kShareOfHidden = 1.0 / 16;

double layer_forward_flop(const StepPlan& plan) {
  ModelConfig layers = plan.config;
  layers.vocab_size = 0;
  return model_flop(layers, plan.options.max_sequences(), plan.options.seq_len) / 3 /
         static_cast<double>(layers.n_layers);
}

}  // namespace

StepEstimate::StepEstimate(const StepPlan& base) {
  const EngineOptions& options = base.options;
  const ModelConfig& config = base.config;
  const auto rows = static_cast<double>(options.max_sequences() * options.seq_len);
  const double down = 2 * rows * static_cast<double>(config.hidden_size * config.intermediate_size);
  recompute_flop_ = layer_forward_flop(base) - (options.recompute == Recompute::kFull ? 0 : down);
  std::int64_t n_recomputed = 0;
  for (std::int64_t layer = 0; layer < config.n_layers; ++layer) n_recomputed += base.buffers.keeps(layer) ? 0 : 1;
  flop_ = model_flop(config, options.max_sequences(), options.seq_len) +
          static_cast<double>(n_recomputed) * recompute_flop_;

  const StepTraffic traffic = step_traffic(base);
  h2d_bytes_ = static_cast<double>(total_bytes(traffic.h2d));
  d2h_bytes_ = static_cast<double>(total_bytes(traffic.d2h));
  host_bytes_ = static_cast<double>(traffic.adamw_host_bytes) + h2d_bytes_ + d2h_bytes_;
  device_bytes_ = static_cast<double>(traffic.adamw_device_bytes);
  const auto elems = static_cast<double>(base.parameters.segment(base.parameters.layer_segment(0)).elems);
  layer_bytes_ = elems * static_cast<double>(size_of(options.dtype));
  const Segment& chunk = base.parameters.segment(base.parameters.head_segment(0));
  chunk_bytes_ = static_cast<double>(chunk.elems) * static_cast<double>(size_of(options.dtype));
  layer_update_bytes_ = elems * static_cast<double>(adamw_elem_bytes(base.arrays) + size_of(options.dtype));
}

double StepEstimate::seconds(const More& more) const {
  const auto state = static_cast<double>(more.state_layers);
  // A layer on the device saves two trips; one more slot holds a chunk, and an own place a layer, for the second.
  const double saved_up = (2 * state + static_cast<double>(more.weight_layers)) * layer_bytes_ +
                          static_cast<double>(more.weight_slots) * chunk_bytes_;
  const double saved_down = state * layer_bytes_;
  const double parts[] = {(flop_ - static_cast<double>(more.keep_layers) * recompute_flop_) / kFlopPerSecond +
                              (device_bytes_ + state * layer_update_bytes_) / kDeviceBytesPerSecond,
                          (host_bytes_ - state * layer_update_bytes_ - saved_up - saved_down) / kHostBytesPerSecond,
                          (h2d_bytes_ - saved_up) / kBusBytesPerSecond, (d2h_bytes_ - saved_down) / kBusBytesPerSecond};
  double sum = 0;
  for (const double part : parts) sum += part;
  return std::ranges::max(parts) + sum * kShareOfHidden;
}

}  // namespace ferry
