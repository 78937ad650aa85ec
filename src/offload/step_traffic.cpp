// SPDX-License-Identifier: Apache-2.0
// The copies of a step, counted: as WeightSlots, GradientSlots, ResidualStore and both ends of a pass make them.
#include "offload/step_traffic.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"
#include "offload/gradient_norms.h"
#include "offload/residual_store.h"

namespace ferry {
namespace {

/// Segments of a training pass that have a slot of their own are fetched once, those on the device never.
struct Route {
  std::vector<int> shared;  // in the order of the pass
  std::vector<int> own;
};

Route route_of(const StepPlan& plan) {
  const ParameterTable& table = plan.parameters;
  std::vector<int> layers(static_cast<std::size_t>(plan.config.n_layers));
  std::iota(layers.begin(), layers.end(), table.layer_segment(0));
  std::vector<int> chunks(static_cast<std::size_t>(table.n_head_segments()));
  std::iota(chunks.begin(), chunks.end(), table.head_segment(0));
  std::vector<int> all = layers;
  all.push_back(table.final_norm_segment());
  all.insert(all.end(), chunks.begin(), chunks.end());
  if (plan.buffers.head_mode() != HeadMode::kTokens) all.insert(all.end(), chunks.rbegin(), chunks.rend());
  all.insert(all.end(), layers.rbegin(), layers.rend());
  Route route;
  for (const auto& [segment, id] : plan.device.own_slots) route.own.push_back(segment);
  for (const int segment : all) {
    const bool on_host = plan.arrays.home_of(table.segment(segment).offset) == Home::kHost;
    if (on_host && std::ranges::count(route.own, segment) == 0) route.shared.push_back(segment);
  }
  return route;
}

/// The indices of `route` that are fetched.
std::vector<std::size_t> fetches(const std::vector<int>& route, std::size_t n_slots) {
  std::vector<int> held;  // used longest ago first
  std::vector<std::size_t> result;
  for (std::size_t i = 0; i < route.size(); ++i) {
    const auto found = std::ranges::find(held, route[i]);
    if (found != held.end()) {
      held.erase(found);
    } else {
      result.push_back(i);
      if (held.size() == n_slots) held.erase(held.begin());
    }
    held.push_back(route[i]);
  }
  return result;
}

void add_adamw(const StepPlan& plan, StepTraffic& traffic) {
  const std::size_t elem_bytes = adamw_elem_bytes(plan.arrays);
  for (const ParameterInfo& info : plan.parameters.parameters()) {
    if (!info.trained) continue;
    const bool on_host = plan.arrays.home_of(info.offset) == Home::kHost;
    // A row of an untied embedding that the batch does not read has no gradient.
    const bool has_gradient = !on_host || !info.is_embedding || plan.parameters.tied();
    const std::size_t gradient_bytes = has_gradient ? size_of(plan.options.dtype) : 0;
    (on_host ? traffic.adamw_host_bytes : traffic.adamw_device_bytes) +=
        static_cast<std::size_t>(info.elems) * (elem_bytes + gradient_bytes);
  }
}

void add_ends(const StepPlan& plan, StepTraffic& traffic) {
  const auto rows = static_cast<std::size_t>(plan.options.max_sequences() * plan.options.seq_len);
  const std::size_t rows_bytes = rows * static_cast<std::size_t>(plan.config.hidden_size) * size_of(plan.options.dtype);
  const std::size_t mask = plan.takes_norms() ? static_cast<std::size_t>(plan.config.vocab_size) : 0;
  const bool on_host = plan.table_is_on(Home::kHost);
  const bool trained = plan.parameters.parameters().front().trained;
  const auto residuals = static_cast<std::size_t>(ResidualStore::count(plan.buffers)) * rows_bytes;
  add_line(traffic.h2d, "residuals", residuals);
  add_line(traffic.d2h, "residuals", residuals);
  add_line(traffic.h2d, "embedding rows", on_host ? rows_bytes : 0);
  add_line(traffic.d2h, "gradient of the input", trained && (on_host || plan.takes_norms()) ? rows_bytes : 0);
  add_line(traffic.h2d, "tokens", (4 * rows + mask) * sizeof(std::int32_t));
  if (!plan.takes_norms()) {
    add_line(traffic.d2h, "loss, norms", sizeof(float));
    return;
  }
  std::size_t n_sums = 1;
  for (const Segment& segment : plan.parameters.segments()) {
    if (segment.kind == Segment::Kind::kEmbedding) continue;  // of its rows alone, taken on the host
    n_sums += norm_runs(plan.parameters, segment).size();
  }
  add_line(traffic.d2h, "loss, norms", n_sums * sizeof(float));
}

}  // namespace

std::size_t adamw_elem_bytes(const ParameterArrays& arrays) {
  std::size_t bytes = 0;
  for (const auto array : {ParameterArray::kWeight, ParameterArray::kFirstMoment, ParameterArray::kSecondMoment}) {
    bytes += 2 * size_of(arrays.dtype_of(array));
  }
  return bytes + (arrays.split_master() ? 2 * size_of(DType::kI16) : 0);
}

StepTraffic step_traffic(const StepPlan& plan) {
  FERRY_ASSERT(plan.options.training);
  StepTraffic traffic;
  const auto bytes_of = [&plan](int segment) {
    return static_cast<std::size_t>(plan.parameters.segment(segment).elems) * size_of(plan.options.dtype);
  };
  const Route route = route_of(plan);
  for (const std::size_t i : fetches(route.shared, plan.device.weight_slots.size())) {
    add_line(traffic.h2d, "weights", bytes_of(route.shared[i]));
  }
  for (const int segment : route.own) add_line(traffic.h2d, "weights", bytes_of(segment));
  for (std::size_t i = 0; i < plan.parameters.segments().size(); ++i) {
    const Segment& segment = plan.parameters.segment(static_cast<int>(i));
    const bool goes_home = segment.kind != Segment::Kind::kEmbedding && plan.parameters.is_trained(segment) &&
                           plan.arrays.home_of(segment.offset) == Home::kHost;
    if (goes_home) add_line(traffic.d2h, "gradients", bytes_of(static_cast<int>(i)));
  }
  add_ends(plan, traffic);
  add_adamw(plan, traffic);
  return traffic;
}

}  // namespace ferry
