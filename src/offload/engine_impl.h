// SPDX-License-Identifier: Apache-2.0
// The engine's parts and how they are put together; private to src/offload.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "core/cpu_topology.h"
#include "core/thread_pool.h"
#include "offload/engine.h"
#include "offload/gradient_norms.h"
#include "offload/gradient_slots.h"
#include "offload/optimizer_queue.h"
#include "offload/pass_ops.h"
#include "offload/residual_store.h"
#include "offload/step_buffers.h"
#include "offload/step_plan.h"
#include "offload/weight_slots.h"

namespace ferry {

/// One trip of a batch through the model.
struct Pass {
  PassOps ops;
  std::vector<int> head_chunks;  // segments, ascending

  const LlamaShape& shape() const { return ops.batch(); }
  const OpContext& context() const { return ops.context(); }
  bool training() const { return ops.training(); }
};

/// Throws Error{kShape} for a token outside of the vocabulary; kIgnoreIndex may be a target.
void check_ids(std::span<const std::int32_t> ids, std::int64_t vocab_size, bool targets);

class Engine::Impl {
 public:
  Impl(Backend& backend, const ModelConfig& config, const EngineOptions& options);
  ~Impl();

  // engine.cpp: parameters, memory, results
  void initialize(std::uint64_t seed);
  void set_parameter(std::size_t index, std::int64_t first, std::span<const float> values);
  void for_each_piece(ParameterArray array, const PieceFn& fn);
  std::optional<DType> dtype_of(ParameterArray array, const ParameterInfo& info) const;
  void set_array(ParameterArray array, std::size_t index, std::int64_t first, std::span<const std::byte> bytes);
  StepCounts step_counts();
  void set_step_counts(const StepCounts& counts);
  void finish();
  double loss(std::int64_t step);
  StepStats stats(std::int64_t step);
  void start_trace(std::int64_t n_steps);
  std::vector<TimelineSpan> take_trace();
  const ParameterTable& parameters() const { return parameters_; }
  const PoolPlacement& pool_placement() const { return pool_placement_; }
  std::vector<MemoryLine> device_memory() const { return plan_.device.memory.peak_lines(); }
  std::vector<MemoryLine> host_memory() const { return host_.memory.lines(); }

  // engine_step.cpp, engine_embedding.cpp, engine_logits.cpp: passes
  std::int64_t train_step(const Batch& batch, double lr, const Batch* next);
  double evaluate(const Batch& batch);
  std::vector<float> next_logits(std::span<const std::int32_t> ids);
  std::vector<float> extend(std::span<const std::int32_t> ids);
  std::int64_t n_cached() const { return n_cached_; }
  void reset_cache();

 private:
  /// What is remembered of a launched step until its loss has been read.
  struct StepRecord {
    std::int64_t step = -1;
    StepStats stats;
    std::unique_ptr<Event> begun;
    std::unique_ptr<Event> ended;
    std::unique_ptr<Event> loss_arrived;
  };

  // engine_setup.cpp: allocation
  void bind_arrays();
  void create_slots();
  void create_events();
  void upload_rope_table();
  void* at(MemoryPlan::Id id) const;
  bool anything_on(Home home) const { return plan_.anything_on(home); }
  bool table_is_on(Home home) const { return plan_.table_is_on(home); }

  void set_device_parameter(std::int64_t offset, std::span<const float> values);

  Pass begin_pass(std::int64_t batch_size, std::int64_t seq_len, PassOps::Kind kind);
  Pass begin_cached_pass(std::int64_t n_ids, bool with_head);
  void start(const Pass& pass);
  OpContext compute_context();
  std::vector<int> head_chunks() const;
  void upload_tokens(const LlamaShape& shape, std::span<const std::int32_t> inputs,
                     std::span<const std::int32_t> targets, const BatchRows* rows = nullptr);
  void embed(const Pass& pass, std::span<const std::int32_t> inputs, const BatchRows& rows, Event* begun = nullptr);
  void gather(const TensorView& table, std::span<const std::int32_t> inputs, const TensorView& x);
  void wait_for_rows(const BatchRows& rows);
  void submit_other_rows();
  void forward_layers(const Pass& pass);
  void head_forward(const Pass& pass, float scale, const TensorView& loss);
  void head_backward(const Pass& pass, float scale);
  void train_head(const Pass& pass, float scale, StepRecord& record);
  void backward_layers(const Pass& pass);
  void embed_backward(const Pass& pass, const BatchRows& rows);
  void embed_backward_on_device(const Pass& pass, const BatchRows& rows);
  TensorView table_gradient() const;
  void send_rows(const RowGradients& gradients, const TensorView& source);
  std::vector<float> last_logits(const Pass& pass);
  void end_pass();
  void read_loss(const TensorView& loss, float* host, Event* arrived);

  /// The gradient is written: norms, write-back or device update, as its home wants.
  void finish_gradient(const OpContext& context, const GradientLease& lease);
  /// AdamW on the device for the trained parameters of a segment.
  void update_on_device(int segment, const TensorView& gradient);
  void update_all_on_device(std::int64_t step);

  Backend& backend_;
  StepPlan plan_;
  const ModelConfig& config_ = plan_.config;
  const EngineOptions& options_ = plan_.options;
  const ParameterTable& parameters_ = plan_.parameters;
  ParameterArrays& arrays_ = plan_.arrays;
  HostPlan& host_ = plan_.host;
  StepBuffers& buffers_ = plan_.buffers;
  const PieceTable pieces_;
  Buffer arena_;
  const std::int64_t host_piece_elems_;

  Streams streams_;
  const PoolPlacement pool_placement_;
  ThreadPool pool_;
  std::optional<WeightSlots> weights_;
  std::optional<ResidualStore> residuals_;
  std::optional<GradientNorms> norms_;
  std::optional<GradientSlots> gradients_;

  std::unique_ptr<Event> tokens_ready_;  // on h2d
  std::unique_ptr<Event> pass_ended_;    // on compute: activations and tokens may be overwritten
  std::unique_ptr<Event> d_stream_ready_;
  std::unique_ptr<Event> d_x_arrived_;
  std::unique_ptr<Event> logits_ready_;
  bool any_pass_ = false;
  bool any_embedding_gradient_ = false;
  std::int64_t n_cached_ = 0;  // tokens of the sequence in the key/value cache
  std::array<StepRecord, kLossHistory> records_;
  std::int64_t steps_ = 0;
  std::vector<std::int32_t> next_inputs_;  // of the batch that the last step named as the next
  std::shared_ptr<const BatchRows> next_rows_;
  StepScalars scalars_;                    // of the step's updates on the device
  std::unique_ptr<OptimizerQueue> queue_;  // only when training; last: its threads use the members above
};

}  // namespace ferry
