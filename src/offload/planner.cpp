// SPDX-License-Identifier: Apache-2.0
// A search over plans: each candidate is planned in full, which allocates nothing and takes well under a millisecond.
#include "offload/planner.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

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
};

class Planner {
 public:
  Planner(const ModelConfig& config, const PlanRequest& request, const ScratchSizes& sizes)
      : config_(config), request_(request), free_(request.free), sizes_(sizes) {}

  PlanChoice choose() const {
    const EngineOptions& plain = request_.options;
    if (request_.device.kind == DeviceBudget::Kind::kNone) return {plain, {}};
    PlanChoice choice = shrink(plain);
    if (request_.device.kind == DeviceBudget::Kind::kBytes) choice.options = grow(choice.options);
    return choice;
  }

 private:
  Sizes measure(const EngineOptions& options) const {
    const StepPlan plan(config_, options, sizes_);
    return {plan.device.memory.arena_bytes(), plan.host.memory.total_bytes()};
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

  std::string too_small_text(std::size_t least) const {
    std::string pins;
    const auto add = [&pins](bool is_free, const char* name) {
      if (!is_free) pins += fmt::format("{}{}", pins.empty() ? "" : ", ", name);
    };
    add(free_.residuals, "residuals");
    add(free_.mlp_cut, "mlp_chunk");
    add(free_.vocab_chunk, "vocab_chunk");
    add(free_.recompute, "recompute");
    add(free_.resident_state_layers, "resident_state_layers");
    add(free_.resident_layers, "resident_layers");
    add(free_.weight_slots, "weight_slots");
    return fmt::format(
        "the smallest plan of {} x {} tokens takes {:.3f} GiB ({} bytes){}: raise gpu_memory, or lower batch_size "
        "(with "
        "more accumulate) or seq_len",
        request_.options.batch_size, request_.options.seq_len, std::ceil(static_cast<double>(least) / kGiB * 1e3) / 1e3,
        least, pins.empty() ? "" : fmt::format(", with {} as given", pins));
  }

  struct Growth {
    EngineOptions options;
    double estimate_s = 0;
  };

  static EngineOptions with(EngineOptions options, std::int64_t state_layers, std::int64_t keep_layers) {
    options.resident_state_layers += state_layers;
    options.keep_layers += keep_layers;
    return options;
  }

  /// All numbers of layers that fit, by what the first of each kind takes: the others take as much.
  void add_growths(const EngineOptions& base, std::vector<Growth>& result) const {
    const std::int64_t n_layers = config_.n_layers;
    const bool may_hold_state = free_.resident_state_layers && base.offload != Offload::kNone;
    const bool may_keep = free_.recompute && base.recompute != Recompute::kNone;
    const Sizes none = measure(base);
    const Sizes state = may_hold_state ? measure(with(base, 1, 0)) : none;
    const Sizes keep = may_keep ? measure(with(base, 0, 1)) : none;
    const StepEstimate estimate(StepPlan(config_, base, sizes_));
    for (std::int64_t s = 0; s <= (may_hold_state ? n_layers - base.resident_state_layers : 0); ++s) {
      for (std::int64_t k = 0; k <= (may_keep ? n_layers - base.keep_layers : 0); ++k) {
        const auto bytes = static_cast<double>(none.device) + static_cast<double>(s) * difference(state, none) +
                           static_cast<double>(k) * difference(keep, none);
        if (bytes > static_cast<double>(request_.device.bytes)) break;
        result.push_back({with(base, s, k), estimate.seconds(s, k)});
      }
    }
  }

  static double difference(const Sizes& more, const Sizes& less) {
    return static_cast<double>(more.device) - static_cast<double>(less.device);
  }

  bool within(const Sizes& sizes) const {
    return fits(sizes.device) && (!request_.host_bytes || sizes.host <= *request_.host_bytes);
  }

  EngineOptions grow(const EngineOptions& base) const {
    std::vector<Growth> candidates;
    add_growths(base, candidates);
    if (free_.residuals && base.residuals == Residuals::kDevice) {
      EngineOptions on_host = base;
      on_host.residuals = Residuals::kHost;
      add_growths(on_host, candidates);
    }
    std::ranges::stable_sort(candidates, {}, &Growth::estimate_s);
    const auto found = std::ranges::find_if(candidates, [this](const Growth& g) { return within(measure(g.options)); });
    EngineOptions best = found == candidates.end() ? base : found->options;
    if (best.offload == Offload::kNone) return best;
    if (free_.weight_slots)
      raise(
          best, [](EngineOptions& o) { ++o.weight_slots; }, 1);
    if (free_.resident_layers) {
      const std::int64_t most = config_.n_layers - best.resident_state_layers - best.resident_layers;
      raise(
          best, [](EngineOptions& o) { ++o.resident_layers; }, most);
    }
    return best;
  }

  /// As often as it fits, `most` times.
  template <class Change>
  void raise(EngineOptions& options, Change&& change, std::int64_t most) const {
    for (std::int64_t i = 0; i < most; ++i) {
      EngineOptions candidate = options;
      change(candidate);
      if (!within(measure(candidate))) return;
      options = candidate;
    }
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
