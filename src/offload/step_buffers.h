// SPDX-License-Identifier: Apache-2.0
// The activations of a step: planned for the largest batch, viewed for the batch at hand.
#pragma once

#include <cstdint>
#include <vector>

#include "model/llama.h"
#include "offload/engine.h"
#include "offload/memory_plan.h"

namespace ferry {

class StepBuffers {
 public:
  /// Adds every buffer to `plan`, which must outlive this object.
  StepBuffers(MemoryPlan& plan, Backend& backend, const ModelConfig& config, const EngineOptions& options,
              const ParameterTable& parameters);

  /// Views point into the packed plan's arena from now on.
  void bind(void* arena) { arena_ = arena; }

  /// Input of layer l; layer n_layers stands for the input of the head.  (N, C)
  TensorView residual(const LlamaShape& shape, std::int64_t layer) const;
  LayerKept kept(const LlamaShape& shape, std::int64_t layer) const;
  LayerWork work(const LlamaShape& shape) const;
  HeadWork head(const LlamaShape& shape) const;
  TensorView d_stream(const LlamaShape& shape) const;  // (N, C)
  RopeTable rope(const LlamaShape& shape) const;
  TensorView ids(const LlamaShape& shape) const;           // (N) i32
  TensorView targets(const LlamaShape& shape) const;       // (N) i32
  TensorView order(const LlamaShape& shape) const;         // (N) i32, ids sorted: see EmbeddingBackward
  TensorView distinct_ids(const LlamaShape& shape) const;  // (N) i32, the batch's distinct ids come first
  TensorView row_mask() const;                             // (V) i32, 1 where the batch reads the embedding's row
  /// Losses of recent steps, and one place more for evaluation.
  TensorView loss(std::int64_t index) const;  // (1) f32
  Scratch scratch() const;

 private:
  using Id = MemoryPlan::Id;
  struct KeptIds {
    Id qkv, attn, lse, x_mid, gate_up, rstd_in, rstd_mid;
  };
  struct WorkIds {
    Id norm, proj, act, d_act, d_norm, d_attn, d_qkv, d_stream;
  };
  struct HeadIds {
    Id hidden, rstd, logits, lse, target_logit, d_hidden, d_norm;
  };
  struct StepIds {
    Id ids, targets, order, distinct_ids, row_mask, losses, cos, sin, scratch;
  };

  Id add(const char* purpose, std::int64_t elems, DType dtype, PhaseSet phases);
  void add_layer_buffers(const LlamaShape& shape);
  void add_head_buffers(const LlamaShape& shape);
  void add_step_buffers(const LlamaShape& shape);
  KeptIds add_kept(const LlamaShape& shape, const char* purpose, bool whole_step);
  std::size_t measure_scratch(Backend& backend, const LlamaShape& shape);
  TensorView view(Id id, DType dtype, std::initializer_list<std::int64_t> shape) const;

  MemoryPlan& plan_;
  const DType dtype_;
  const bool training_;
  const Recompute recompute_;
  const std::int64_t n_layers_;
  const std::int64_t vocab_chunk_;  // rows of the largest head chunk
  const std::int64_t vocab_size_;
  const std::int64_t largest_segment_;  // elements
  void* arena_ = nullptr;
  std::vector<Id> residuals_;  // all inputs when training, else two that take turns
  std::vector<KeptIds> kept_;  // one a layer, or one for all
  WorkIds work_{};
  HeadIds head_{};
  StepIds step_{};
};

}  // namespace ferry
