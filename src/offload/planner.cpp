// SPDX-License-Identifier: Apache-2.0
// A search over plans: each candidate is planned in full, which allocates nothing and takes well under a millisecond.
#include "offload/planner.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "offload/step_estimate.h"
#include "offload/step_plan.h"

namespace ferry {
namespace {

constexpr double kGiB = 0x1p30;

/// Smallest parts that a budget may force: below, launches and sums cost more than the memory is worth.
constexpr std::int64_t kLeastFeatures = 256;
constexpr std::int64_t kLeastVocabRows = 1024;

struct Sizes {
  std::size_t device = 0;
  std::size_t host = 0;
  std::size_t travelling = 0;  // weights that each forward pass fetches
};

std::size_t travelling_bytes(const StepPlan& plan) {
  std::size_t elems = 0;
  for (const Segment& segment : plan.parameters.segments()) {
    const bool on_host = plan.arrays.home_of(segment.offset) == Home::kHost;
    if (on_host && segment.kind != Segment::Kind::kEmbedding) elems += static_cast<std::size_t>(segment.elems);
  }
  return elems * size_of(plan.options.dtype);
}

class Planner {
 public:
  Planner(const ModelConfig& config, const PlanRequest& request, const ScratchSizes& sizes)
      : config_(config), request_(request), free_(request.free), sizes_(sizes) {}

  PlanChoice choose() const {
    const EngineOptions& plain = request_.options;
    const auto kind = request_.device.kind;
    if (!plain.training && free_.offload && kind != DeviceBudget::Kind::kMin) {
      EngineOptions resident = plain;
      resident.offload = Offload::kNone;
      if (kind == DeviceBudget::Kind::kNone || fits(measure(resident).device)) return {resident, {}};
    }
    if (kind == DeviceBudget::Kind::kNone) return {plain, {}};
    PlanChoice choice = shrink(plain);
    if (kind == DeviceBudget::Kind::kBytes) {
      choice.options = plain.training ? grow(choice.options) : keep_weights(choice.options);
    }
    return choice;
  }

 private:
  Sizes measure(const EngineOptions& options) const {
    const StepPlan plan(config_, options, sizes_);
    return {plan.device.memory.arena_bytes(), plan.host.memory.total_bytes(), travelling_bytes(plan)};
  }

  bool fits(std::size_t device_bytes) const {
    return request_.device.kind == DeviceBudget::Kind::kBytes && device_bytes <= request_.device.bytes;
  }

  /// Steps of the ladder are taken until the plan fits, or until none helps any more.
  PlanChoice shrink(EngineOptions options) const {
    std::size_t best = measure(options).device;
    if (!fits(best) && free_.residuals) {
      EngineOptions candidate = options;
      candidate.residuals = Residuals::kHost;
      take_if_smaller(options, best, candidate);
    }
    const EngineOptions exact = options;
    while (!fits(best)) {
      EngineOptions least = options;
      std::size_t least_bytes = best;
      for (const EngineOptions& candidate : smaller(options)) take_if_smaller(least, least_bytes, candidate);
      if (least_bytes == best) break;
      options = least;
      best = least_bytes;
    }
    const bool too_small = request_.device.kind == DeviceBudget::Kind::kBytes && !fits(best);
    FERRY_CHECK(!too_small, kMemory, "{}: {}", request_.device.what, too_small_text(best));
    return {options, notes_of(exact, options)};
  }

  void take_if_smaller(EngineOptions& best, std::size_t& best_bytes, const EngineOptions& candidate) const {
    const std::size_t bytes = measure(candidate).device;
    if (bytes >= best_bytes) return;
    best = candidate;
    best_bytes = bytes;
  }

  /// One step further, for each of what changes the order of sums, and for both: two phases may be equally large.
  std::vector<EngineOptions> smaller(const EngineOptions& options) const {
    std::vector<EngineOptions> result;
    const std::int64_t features = options.mlp_cut.cuts() ? options.mlp_cut.size : config_.intermediate_size;
    if (free_.mlp_cut && features >= 2 * kLeastFeatures) {
      result.push_back(options);
      result.back().mlp_cut = {MlpCut::By::kFeatures, (features + 1) / 2};
    }
    const std::int64_t rows = choose_vocab_chunk(config_, options);
    if (free_.vocab_chunk && rows >= 2 * kLeastVocabRows) {
      result.push_back(options);
      result.back().vocab_chunk = (rows + 1) / 2;
    }
    if (result.size() == 2) {
      result.push_back(result.front());
      result.back().vocab_chunk = result[1].vocab_chunk;
    }
    return result;
  }

  std::vector<std::string> notes_of(const EngineOptions& before, const EngineOptions& after) const {
    std::vector<std::string> notes;
    if (after.mlp_cut.size != before.mlp_cut.size) {
      notes.push_back(fmt::format("mlp_chunk = features:{}", after.mlp_cut.size));
    }
    if (after.vocab_chunk != before.vocab_chunk) notes.push_back(fmt::format("vocab_chunk = {}", after.vocab_chunk));
    return notes;
  }

  /// With the pins that keep it from being smaller.
  std::string too_small_text(std::size_t least) const {
    const EngineOptions& given = request_.options;
    std::string pins;
    const auto add = [&pins](bool limits, const char* name) {
      if (limits) pins += fmt::format("{}{}", pins.empty() ? "" : ", ", name);
    };
    add(given.training && !free_.residuals && given.residuals == Residuals::kDevice, "residuals");
    add(!free_.mlp_cut, "mlp_chunk");
    add(!free_.vocab_chunk, "vocab_chunk");
    add(given.training && !free_.recompute && (given.keep_layers > 0 || given.recompute == Recompute::kNone),
        "recompute");
    add(given.resident_state_layers > 0, "resident_state_layers");
    add(given.resident_layers > 0, "resident_layers");
    add(given.weight_slots > 2, "weight_slots");
    add(given.training && given.grad_slots > 2, "grad_slots");
    add(given.training && !free_.head && given.head != HeadMode::kChunks, "head");
    add(given.offload != Offload::kAll, "offload");
    const std::string size =
        fmt::format("{:.3f} GiB ({} bytes)", std::ceil(static_cast<double>(least) / kGiB * 1e3) / 1e3, least);
    const std::string given_pins = pins.empty() ? "" : fmt::format(", with {} as given", pins);
    if (given.cache_tokens > 0) {
      return fmt::format("the smallest plan for {} tokens takes {}{}: raise gpu_memory, or generate fewer tokens",
                         given.cache_tokens, size, given_pins);
    }
    return fmt::format(
        "the smallest plan of {} x {} tokens takes {}{}: raise gpu_memory, or lower batch_size{} or seq_len",
        given.batch_size, given.seq_len, size, given_pins, given.training ? " (with more accumulate)" : "");
  }

  using Growth = StepEstimate::More;

  static EngineOptions with(EngineOptions options, const Growth& growth) {
    options.resident_state_layers += growth.state_layers;
    options.keep_layers += growth.keep_layers;
    options.weight_slots += static_cast<int>(growth.weight_slots);
    options.resident_layers += growth.weight_layers;
    return options;
  }

  struct Candidate {
    EngineOptions options;
    double estimate_s = 0;
  };

  /// What one more of something takes: the next ones take as much.
  double unit_bytes(const EngineOptions& base, const Growth& one) const {
    return static_cast<double>(measure(with(base, one)).device) - static_cast<double>(measure(base).device);
  }

  /// For each number of layers on the device and with kept activations that fits, what else fits beside them.
  void add_candidates(const EngineOptions& base, std::vector<Candidate>& candidates) const {
    const bool streams = base.offload != Offload::kNone;
    const std::int64_t n_layers = config_.n_layers;
    const std::int64_t most_state = free_.resident_state_layers && streams ? n_layers : 0;
    const std::int64_t most_kept = free_.recompute && base.recompute != Recompute::kNone ? n_layers : 0;
    const double state_bytes = most_state > 0 ? unit_bytes(base, {.state_layers = 1}) : 0;
    const double keep_bytes = most_kept > 0 ? unit_bytes(base, {.keep_layers = 1}) : 0;
    const double slot_bytes = free_.weight_slots && streams ? unit_bytes(base, {.weight_slots = 1}) : 0;
    const double layer_bytes = free_.resident_layers && streams ? unit_bytes(base, {.weight_layers = 1}) : 0;
    const double spare_bytes = static_cast<double>(request_.device.bytes) - static_cast<double>(measure(base).device);
    const StepEstimate estimate(StepPlan(config_, base, sizes_), request_.rates);
    Growth growth;
    for (growth.state_layers = 0; growth.state_layers <= most_state; ++growth.state_layers) {
      for (growth.keep_layers = 0; growth.keep_layers <= most_kept; ++growth.keep_layers) {
        double left = spare_bytes - static_cast<double>(growth.state_layers) * state_bytes -
                      static_cast<double>(growth.keep_layers) * keep_bytes;
        if (left < 0) break;
        growth.weight_slots = slot_bytes > 0 && left >= slot_bytes ? 1 : 0;
        left -= static_cast<double>(growth.weight_slots) * slot_bytes;
        const auto room = layer_bytes > 0 ? static_cast<std::int64_t>(left / layer_bytes) : 0;
        growth.weight_layers = std::min(room, n_layers - growth.state_layers);
        candidates.push_back({with(base, growth), estimate.forecast(growth).total_s});
      }
    }
  }

  /// Of a forward-only engine: as many layers as fit live on the device, with the rest of the model or without.
  EngineOptions keep_weights(const EngineOptions& base) const {
    EngineOptions best = base;
    for (const Offload offload : {Offload::kAll, Offload::kLayers}) {
      EngineOptions candidate = base;
      if (free_.offload) candidate.offload = offload;
      const std::int64_t most = free_.resident_state_layers ? config_.n_layers : base.resident_state_layers;
      candidate.resident_state_layers = most;
      while (candidate.resident_state_layers > base.resident_state_layers && !within(candidate)) {
        --candidate.resident_state_layers;
      }
      if (within(candidate) && measure(candidate).travelling < measure(best).travelling) best = candidate;
    }
    return best;
  }

  bool within(const EngineOptions& options) const {
    const Sizes sizes = measure(options);
    return fits(sizes.device) && (!request_.host_bytes || sizes.host <= *request_.host_bytes);
  }

  /// What is either so or not, in all combinations.
  std::vector<EngineOptions> variants(const EngineOptions& base) const {
    std::vector<EngineOptions> result = {base};
    if (free_.residuals && base.residuals == Residuals::kDevice) {
      result.push_back(base);
      result.back().residuals = Residuals::kHost;
    }
    if (!free_.head || base.head != HeadMode::kChunks) return result;
    for (std::size_t i = 0, n = result.size(); i < n; ++i) {
      result.push_back(result[i]);
      result.back().head = HeadMode::kLogits;
    }
    return result;
  }

  EngineOptions grow(const EngineOptions& base) const {
    std::vector<Candidate> candidates;
    for (const EngineOptions& variant : variants(base)) add_candidates(variant, candidates);
    std::ranges::stable_sort(candidates, {}, &Candidate::estimate_s);
    const auto found = std::ranges::find_if(candidates, [this](const Candidate& c) { return within(c.options); });
    return found == candidates.end() ? base : found->options;
  }

  const ModelConfig& config_;
  const PlanRequest& request_;
  const PlanFreedom& free_;
  const ScratchSizes& sizes_;
};

}  // namespace

PlanChoice choose_plan(const ModelConfig& config, const PlanRequest& request, const ScratchSizes& sizes) {
  return Planner(config, request, sizes).choose();
}

}  // namespace ferry
