// SPDX-License-Identifier: Apache-2.0
// The activations of a step: planned for the largest batch, viewed for the batch at hand.
#pragma once

#include <cstdint>
#include <vector>

#include "model/llama.h"
#include "offload/engine.h"
#include "offload/memory_plan.h"

namespace ferry {

/// Some sequences of a batch that go through a layer together.
struct MicroBatch {
  LlamaShape shape;
  std::int64_t first_sequence = 0;

  std::int64_t first_row() const { return first_sequence * shape.T; }
  TensorView rows_of(const TensorView& batch) const { return batch.rows(first_row(), shape.N()); }
};

struct RowRange {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

/// What outlives a layer (residuals, d_stream, the head's rows) exists for the whole batch, what a layer works with for
/// one micro-batch. In views of the first kind N is the batch's.
class StepBuffers {
 public:
  /// Adds every buffer to `plan`, which must outlive this object. Throws Error{kConfig}.
  StepBuffers(MemoryPlan& plan, const ScratchSizes& sizes, const ModelConfig& config, const EngineOptions& options,
              const ParameterTable& parameters);

  /// Views point into the packed plan's arena from now on.
  void bind(void* arena) { arena_ = arena; }

  /// Residuals on the device at a time when they do not stay: one that is read, one that is written, one on its way.
  static constexpr std::int64_t kResidualRing = 3;

  const EngineOptions& options() const { return options_; }
  std::int64_t n_layers() const { return n_layers_; }
  /// Of a forward-only engine always kChunks.
  HeadMode head_mode() const { return options_.training ? options_.head : HeadMode::kChunks; }
  /// Whether backward finds the layer's activations where forward left them.
  bool keeps(std::int64_t layer) const { return layer >= n_layers_ - n_kept_layers(); }
  std::vector<MicroBatch> micro_batches(const LlamaShape& batch) const;
  /// Rows whose logits are made together, in order.
  std::vector<RowRange> head_rows(const LlamaShape& batch) const;

  /// Input of layer l; layer n_layers stands for the input of the head.  (N, C)
  TensorView residual(const LlamaShape& batch, std::int64_t layer) const;
  LayerKept kept(const MicroBatch& micro, std::int64_t layer) const;
  LayerWork work(const LlamaShape& micro) const;
  /// Where the weight gradients of a layer are summed before they are rounded into `rounded`. `several`: over more than
  /// one micro-batch.
  LayerGradients gradients(const LayerTensors& rounded, bool several) const;
  HeadWork head(const LlamaShape& batch) const;
  /// Place of the logits of one range of head_rows().  (rows.count, segment.n_rows)
  TensorView logits(RowRange rows, const Segment& segment) const;
  /// As gradients(), for a chunk of the vocabulary.  rounded: (v, C)
  TensorView head_sum(const TensorView& rounded, bool several) const;
  TensorView head_table(const LlamaShape& batch) const;           // (V, C), of HeadMode::kTokens
  TensorView head_table_gradient(const LlamaShape& batch) const;  // (V, C) f32, of HeadMode::kTokens
  TensorView d_stream(const LlamaShape& batch) const;             // (N, C)
  /// Of positions [first, first + shape.T).
  RopeTable rope(const LlamaShape& shape, std::int64_t first = 0) const;
  /// Positions that the RoPE table has.
  std::int64_t n_positions() const { return n_positions_; }
  /// Keys and values of a layer, of the first `n_positions` positions.  (n_positions, 2*G*D)
  TensorView cache(std::int64_t layer, std::int64_t n_positions) const;
  /// The whole key/value cache; absent where none is planned.  (n_layers * cache_tokens, 2*G*D)
  TensorView cache() const;
  TensorView ids(const LlamaShape& batch) const;           // (N) i32
  TensorView targets(const LlamaShape& batch) const;       // (N) i32
  TensorView order(const LlamaShape& batch) const;         // (N) i32, ids sorted: see EmbeddingBackward
  TensorView distinct_ids(const LlamaShape& batch) const;  // (N) i32, the batch's distinct ids come first
  TensorView row_mask() const;                             // (V) i32, 1 where the batch reads the embedding's row
  /// Losses of recent steps, and one place more for evaluation.
  TensorView loss(std::int64_t index) const;  // (1) f32
  Scratch scratch() const;
  /// Fills with NaN what no pass expects to find: everything that lives for a part of a step only.
  void poison(const OpContext& context) const;

 private:
  using Id = MemoryPlan::Id;
  struct KeptIds {
    Id qkv, attn, lse, x_mid, gate_up, rstd_in, rstd_mid;
  };
  struct WorkIds {
    Id norm, proj, act, mlp_sum, d_norm, d_attn, d_qkv, d_stream;
  };
  struct SumIds {
    Id input_norm, qkv, out_proj, post_norm, gate_up, down, head;
  };
  struct HeadIds {
    Id hidden, rstd, lse, target_logit, d_hidden, table, table_gradient;
  };
  struct StepIds {
    Id ids, targets, order, distinct_ids, row_mask, losses, cos, sin, cache, scratch;
  };

  Id add(const char* purpose, std::int64_t elems, DType dtype, PhaseSet phases);
  std::int64_t n_kept_layers() const;
  /// A sum over chunks needs f32 beside the model's dtype.
  bool d_hidden_is_a_sum() const { return dtype_ != DType::kF32 && head_mode() != HeadMode::kTokens; }
  void add_layer_buffers(const LlamaShape& micro);
  void add_mlp_buffers(const LlamaShape& micro);
  void add_gradient_sums(const LlamaShape& micro);
  void add_head_buffers(const LlamaShape& batch);
  void add_logits(const LlamaShape& batch);
  void add_step_buffers(const LlamaShape& batch);
  KeptIds add_kept(const LlamaShape& micro, const char* purpose, bool whole_step);
  const KeptIds& kept_ids(const MicroBatch& micro, std::int64_t layer) const;
  std::size_t measure_scratch(const ScratchSizes& sizes, const LlamaShape& batch);
  /// Rows and features of the MLP that exist at a time.
  std::int64_t mlp_rows(const LlamaShape& micro) const;
  std::int64_t mlp_features(const LlamaShape& micro) const;
  /// Absent where nothing was planned; asserts that it fits.
  TensorView view(Id id, DType dtype, std::initializer_list<std::int64_t> shape) const;
  TensorView f32_like(Id id, const TensorView& view) const;

  MemoryPlan& plan_;
  const EngineOptions options_;
  const DType dtype_;
  const std::int64_t n_layers_;
  const std::int64_t vocab_chunk_;  // rows of the largest head chunk
  const std::int64_t vocab_size_;
  const std::int64_t largest_segment_;  // elements
  const std::int64_t n_positions_;
  const std::int64_t cache_width_;  // 2*G*D
  void* arena_ = nullptr;
  std::vector<Id> residuals_;  // all inputs when training, else some that take turns
  KeptIds shared_kept_{};      // of layers that are computed again
  std::vector<KeptIds> kept_;  // of the last layers, one a micro-batch
  WorkIds work_{};
  SumIds sums_{};
  HeadIds head_{};
  std::vector<Id> logits_;  // one, or one a chunk
  StepIds step_{};
};

}  // namespace ferry
