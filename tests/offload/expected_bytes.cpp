// SPDX-License-Identifier: Apache-2.0
// Sums over segments: each streamed one goes down once a visit unless it is still there, each gradient up once.
#include "offload/expected_bytes.h"

#include <algorithm>
#include <set>

#include "offload/gradient_norms.h"

namespace ferry::test {
namespace {

constexpr std::int64_t kResidualsOnDevice = 3;

class Rules {
 public:
  Rules(const ParameterTable& parameters, const ModelConfig& model, const EngineOptions& options, const Batch& batch)
      : parameters_(parameters), model_(model), options_(options), batch_(batch) {}

  StepBytes bytes(bool after_pass) const {
    StepBytes result = weights(after_pass);
    const std::int64_t both = residuals() * rows_bytes();
    const std::int64_t down = both + tokens() + (table_on_device() ? 0 : rows_bytes());
    result.least_h2d += down;
    result.most_h2d += down;
    constexpr std::int64_t kLoss = sizeof(float);
    result.d2h = both + gradients() + norms() + embedding_rows() + kLoss;
    return result;
  }

 private:
  bool takes_norms() const { return options_.check_finite || options_.grad_clip > 0; }
  bool on_device(const Segment& segment) const {
    const bool is_layer = segment.kind == Segment::Kind::kLayer;
    if (options_.offload == Offload::kNone) return true;
    return is_layer ? segment.index < options_.resident_state_layers : options_.offload == Offload::kLayers;
  }
  bool table_on_device() const { return options_.offload != Offload::kAll; }
  bool table_trained() const { return parameters_.parameters().front().trained; }
  std::int64_t elem_bytes() const { return static_cast<std::int64_t>(size_of(options_.dtype)); }
  std::int64_t size_of_segment(const Segment& segment) const { return segment.elems * elem_bytes(); }
  std::int64_t n_tokens() const { return batch_.batch_size * batch_.seq_len; }
  std::int64_t rows_bytes() const { return n_tokens() * model_.hidden_size * elem_bytes(); }
  std::int64_t n_distinct() const {
    return static_cast<std::int64_t>(std::set(batch_.inputs.begin(), batch_.inputs.end()).size());
  }

  /// Inputs, targets, their order, distinct ids; with norms a mask of the vocabulary.
  std::int64_t tokens() const {
    const std::int64_t mask = takes_norms() ? model_.vocab_size : 0;
    return (3 * n_tokens() + n_distinct() + mask) * static_cast<std::int64_t>(sizeof(std::int32_t));
  }

  std::int64_t residuals() const {
    if (options_.residuals == Residuals::kDevice) return 0;
    return std::max<std::int64_t>(0, model_.n_layers + 1 - kResidualsOnDevice);
  }

  bool has_own_slot(const Segment& segment) const {
    if (segment.kind == Segment::Kind::kFinalNorm) return true;
    const std::int64_t end = options_.resident_state_layers + options_.resident_layers;
    return segment.kind == Segment::Kind::kLayer && segment.index < end;
  }

  StepBytes weights(bool after_pass) const {
    std::int64_t own = 0;
    std::int64_t once = 0;
    std::int64_t all_visits = 0;
    std::int64_t largest = 0;
    std::int64_t n_shared = 0;
    for (const Segment& segment : parameters_.segments()) {
      if (on_device(segment) || segment.kind == Segment::Kind::kEmbedding) continue;
      const std::int64_t bytes = size_of_segment(segment);
      if (has_own_slot(segment)) {
        own += bytes;
        continue;
      }
      const bool is_head = segment.kind == Segment::Kind::kHead;
      const bool twice = !is_head || options_.head != HeadMode::kTokens;
      const bool turns_here = is_head && segment.index == parameters_.n_head_segments() - 1;
      once += bytes;
      all_visits += twice && !turns_here ? 2 * bytes : bytes;
      largest = std::max(largest, bytes);
      ++n_shared;
    }
    // The pass turns around twice, at the last chunk and at the last layer.
    const std::int64_t stays = options_.weight_slots * largest;
    const std::int64_t kept = after_pass ? stays : 0;
    StepBytes result{.least_h2d = std::max(once, all_visits - 2 * stays) - kept, .most_h2d = all_visits};
    result.least_h2d = std::max<std::int64_t>(0, result.least_h2d);
    if (n_shared <= options_.weight_slots) {  // all of them stay until the next step
      result.most_h2d = once;
      result.least_h2d = after_pass ? 0 : once;
    }
    if (!after_pass) {
      result.least_h2d += own;
      result.most_h2d += own;
    }
    return result;
  }

  std::int64_t gradients() const {
    std::int64_t bytes = 0;
    for (const Segment& segment : parameters_.segments()) {
      if (on_device(segment) || segment.kind == Segment::Kind::kEmbedding) continue;
      if (parameters_.is_trained(segment)) bytes += size_of_segment(segment);
    }
    return bytes;
  }

  std::int64_t norms() const {
    if (!takes_norms()) return 0;
    std::size_t n = 0;
    for (const Segment& segment : parameters_.segments()) {
      if (segment.kind != Segment::Kind::kEmbedding) n += norm_runs(parameters_, segment).size();
    }
    return static_cast<std::int64_t>(n * sizeof(float));
  }

  std::int64_t embedding_rows() const {
    if (!table_trained()) return 0;
    if (!table_on_device()) return rows_bytes();
    return takes_norms() ? n_distinct() * model_.hidden_size * elem_bytes() : 0;
  }

  const ParameterTable& parameters_;
  const ModelConfig& model_;
  const EngineOptions& options_;
  const Batch& batch_;
};

}  // namespace

StepBytes expected_bytes(const ParameterTable& parameters, const ModelConfig& model, const EngineOptions& options,
                         const Batch& batch, bool after_pass) {
  return Rules(parameters, model, options, batch).bytes(after_pass);
}

}  // namespace ferry::test
