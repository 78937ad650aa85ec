// SPDX-License-Identifier: Apache-2.0
// The ops of one pass, segment by segment, over all micro-batches: what the engine enqueues, the floor records and the
// plan measures. Knows no lease and no copy.
#pragma once

#include <cstdint>
#include <vector>

#include "model/llama.h"
#include "model/parameter_table.h"
#include "offload/step_buffers.h"

namespace ferry {

/// Calls come in the order of a pass: layers ascending, head_norm, head_forward for each chunk ascending, head_loss;
/// when training also head_backward for each chunk descending, head_norm_backward, layers descending. Weights and
/// gradients are flat views of a segment.
class PassOps {
 public:
  /// kCached: one sequence goes on, after the positions that the cache holds already.
  enum class Kind { kForward, kTraining, kCached };

  /// `buffers` outlives this object. `n_cached` positions come before the batch's; 0 unless kCached.
  PassOps(const StepBuffers& buffers, const OpContext& context, const LlamaShape& batch, Kind kind,
          std::int64_t n_cached = 0);

  const LlamaShape& batch() const { return batch_; }
  const OpContext& context() const { return context_; }
  bool training() const { return kind_ == Kind::kTraining; }

  void forward_layer(std::int64_t layer, const TensorView& weights) const;
  void backward_layer(std::int64_t layer, const TensorView& weights, const TensorView& gradient) const;

  void head_norm(const TensorView& norm_weight) const;
  void head_forward(const Segment& chunk, const TensorView& weights) const;
  /// `scale` is 1 / (number of valid targets) when training.
  void head_loss(float scale, const TensorView& loss) const;
  /// Whether head_backward reads weights.
  bool head_visits_twice() const { return mode_ != HeadMode::kTokens; }
  struct HeadGradient {
    TensorView gradient;
    float scale = 1;
  };
  void head_backward(const Segment& chunk, const TensorView& weights, const HeadGradient& target) const;
  void head_norm_backward(const TensorView& norm_weight, const TensorView& d_norm_weight) const;

 private:
  LayerCall layer_call(const MicroBatch& micro, std::int64_t layer, const TensorView& weights) const;
  bool recompute(const LayerCall& call, std::int64_t layer) const;
  HeadCall head_call(RowRange rows) const;
  HeadChunk head_chunk(const Segment& chunk, const TensorView& weights, RowRange rows) const;
  void head_by_tokens(float scale) const;

  const StepBuffers& buffers_;
  const OpContext context_;
  const LlamaShape batch_;
  const Kind kind_;
  const std::int64_t n_cached_;
  const HeadMode mode_;
  const std::vector<MicroBatch> micro_batches_;
  const std::vector<RowRange> head_rows_;
};

}  // namespace ferry
