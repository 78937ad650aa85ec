// SPDX-License-Identifier: Apache-2.0
// The matrix products and attention of one training step and nothing else: what a step cannot be faster than.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "backend/backend.h"
#include "config/model_config.h"
#include "offload/engine.h"
#include "offload/memory_plan.h"
#include "offload/pass_ops.h"
#include "offload/step_buffers.h"

namespace ferry {

/// Some of a step's ops.
enum class FloorPart { kAll, kProducts, kAttentionForward, kAttentionBackward };

/// The products and attention that Engine::train_step enqueues on its compute stream, in its order, on memory of real
/// size: forward, what `recompute` computes again, backward, and the head with its second pass. Weights and gradients
/// take turns in two slots each.
class StepFloor {
 public:
  /// Allocates and fills everything with random values. No buffer shares memory with another, as buffers of a step do:
  /// without the ops in between, one product's sums would be another's operand, and grow from step to step.
  /// Throws Error{kConfig | kMemory}.
  StepFloor(Backend& backend, const ModelConfig& config, const EngineOptions& options);

  const ParameterTable& parameters() const { return parameters_; }
  /// In the order of a step.
  const std::vector<Op>& ops() const { return ops_; }
  /// Arithmetic of one step's ops.
  double flop(FloorPart part = FloorPart::kAll) const;

  /// Runs steps of these ops back to back on one stream for about `seconds`, at least one, after one that does not
  /// count. Returns the milliseconds of each. Blocks.
  std::vector<double> run(double seconds, FloorPart part = FloorPart::kAll);

 private:
  static constexpr std::size_t kSlots = 2;
  /// Steps enqueued at once, so that the stream never runs dry.
  static constexpr std::size_t kQueued = 2;

  using Slots = std::array<Buffer, kSlots>;

  void record_ops(const LlamaShape& batch);
  void record_head(const PassOps& ops);
  TensorView in_slot(const Slots& slots, std::int64_t turn, int segment) const;
  void fill(DType dtype, std::size_t arena_bytes, std::int64_t slot_elems);
  void enqueue_step(FloorPart part);

  Backend& backend_;
  const ModelConfig config_;
  const EngineOptions options_;
  const ParameterTable parameters_;
  MemoryPlan plan_{MemoryPlan::Reuse::kNever};
  StepBuffers buffers_;
  Buffer arena_;
  Slots weights_;
  Slots gradients_;
  std::vector<Op> ops_;
  std::unique_ptr<Stream> stream_;  // destroyed before the memory: it waits for its work
};

}  // namespace ferry
