// SPDX-License-Identifier: Apache-2.0
// The engine's parts and how they are put together; private to src/offload.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "core/thread_pool.h"
#include "offload/engine.h"
#include "offload/gradient_norms.h"
#include "offload/gradient_slots.h"
#include "offload/host_memory.h"
#include "offload/optimizer_queue.h"
#include "offload/pass_ops.h"
#include "offload/step_buffers.h"
#include "offload/weight_slots.h"

namespace ferry {

/// `config`, after checking it and the options. Throws Error{kConfig}.
const ModelConfig& checked_model(const ModelConfig& config, const EngineOptions& options);

/// Rows of a vocabulary segment: those asked for, else as many as make a chunk's weights fit a layer's slot, and its
/// logits the place of the MLP's activations (3F columns). Chunks are of about equal size.
std::int64_t choose_vocab_chunk(const ModelConfig& config, const EngineOptions& options);

/// Where each segment lives.
std::vector<Home> choose_homes(const ParameterTable& parameters, const EngineOptions& options);

/// What the engine keeps of each parameter, at its home.
ArrayLayout array_layout(const ParameterTable& parameters, const EngineOptions& options);

/// Device memory for parameters: offsets into the arena by purpose.
struct DevicePlan {
  MemoryPlan memory;
  std::vector<MemoryPlan::Id> weight_slots;
  std::vector<std::pair<int, MemoryPlan::Id>> own_slots;  // by segment
  std::vector<MemoryPlan::Id> grad_slots;
  MemoryPlan::Id norm_grad_slot = 0;
  std::array<MemoryPlan::Id, kParameterArrays> arrays{};  // of what lives on the device
  MemoryPlan::Id norms = 0;
};

/// Host memory by purpose.
struct HostPlan {
  HostMemory memory;
  std::array<HostMemory::Id, kParameterArrays> arrays{};  // of what lives on the host
  HostMemory::Id tokens = 0;                              // ids, targets, order, distinct ids: 4 N; the row mask: V
  HostMemory::Id x = 0;                                   // (N, C), gathered embedding rows
  HostMemory::Id d_x = 0;                                 // (N, C), gradient of the embedding rows
  HostMemory::Id row_gradients = 0;  // (N, C), sums by distinct row; only for an untied table on the host
  HostMemory::Id losses = 0;         // kLossHistory + 1
  HostMemory::Id norms = 0;          // two steps
  HostMemory::Id logits = 0;         // one row of one chunk
  HostMemory::Id piece = 0;          // one piece of any array, and its low halves; only for what lives on the device
  HostMemory::Id piece_low = 0;
};

/// One trip of a batch through the model.
struct Pass {
  PassOps ops;
  std::vector<int> head_chunks;  // segments, ascending

  const LlamaShape& shape() const { return ops.batch(); }
  const OpContext& context() const { return ops.context(); }
};

class Engine::Impl {
 public:
  Impl(Backend& backend, const ModelConfig& config, const EngineOptions& options);
  ~Impl();

  // engine.cpp: parameters, memory, results
  void initialize(std::uint64_t seed);
  void set_parameter(std::size_t index, std::int64_t first, std::span<const float> values);
  void for_each_piece(ParameterArray array, const PieceFn& fn);
  void finish();
  double loss(std::int64_t step);
  StepStats stats(std::int64_t step);
  void start_trace(std::int64_t n_steps);
  std::vector<TimelineSpan> take_trace();
  const ParameterTable& parameters() const { return parameters_; }
  std::vector<MemoryLine> device_memory() const { return plan_.memory.peak_lines(); }
  std::vector<MemoryLine> host_memory() const { return host_.memory.lines(); }

  // engine_step.cpp, engine_embedding.cpp: passes
  std::int64_t train_step(const Batch& batch, double lr);
  double evaluate(const Batch& batch);
  std::vector<float> next_logits(std::span<const std::int32_t> ids);

 private:
  /// What is remembered of a launched step until its loss has been read.
  struct StepRecord {
    std::int64_t step = -1;
    StepStats stats;
    std::unique_ptr<Event> begun;
    std::unique_ptr<Event> ended;
    std::unique_ptr<Event> loss_arrived;
  };

  // engine_setup.cpp: plan and allocation
  void plan_device();
  void plan_host();
  void bind_arrays();
  void create_slots();
  void create_events();
  void upload_rope_table();
  void* at(MemoryPlan::Id id) const;
  bool anything_on(Home home) const;
  bool table_is_on(Home home) const { return arrays_.home_of(0) == home; }  // the embedding starts the flat space
  bool takes_norms() const { return options_.check_finite || options_.grad_clip > 0; }

  void set_device_parameter(std::int64_t offset, std::span<const float> values);

  Pass begin_pass(std::int64_t batch_size, std::int64_t seq_len, PassOps::Kind kind);
  void upload_tokens(const LlamaShape& shape, std::span<const std::int32_t> inputs,
                     std::span<const std::int32_t> targets, const BatchRows* rows = nullptr);
  void embed(const Pass& pass, std::span<const std::int32_t> inputs, Event* begun = nullptr);
  void wait_for_rows(std::span<const std::int32_t> ids);
  void submit_other_rows();
  void forward_layers(const Pass& pass);
  void head_forward(const Pass& pass, float scale, const TensorView& loss);
  void head_backward(const Pass& pass, float scale);
  void train_head(const Pass& pass, float scale, StepRecord& record);
  void backward_layers(const Pass& pass);
  void embed_backward(const Pass& pass, const BatchRows& rows);
  void embed_backward_on_device(const Pass& pass, const BatchRows& rows);
  void send_rows(const RowGradients& gradients, const TensorView& source);
  void end_pass();
  void read_loss(const TensorView& loss, float* host, Event* arrived);

  /// The gradient is written: norms, write-back or device update, as its home wants.
  void finish_gradient(const OpContext& context, const GradientLease& lease);
  /// AdamW on the device for the trained parameters of a segment.
  void update_on_device(int segment, const TensorView& gradient);
  void update_all_on_device(std::int64_t step);

  Backend& backend_;
  const ModelConfig config_;
  const EngineOptions options_;
  const ParameterTable parameters_;
  const PieceTable pieces_;
  ParameterArrays arrays_;
  DevicePlan plan_;
  HostPlan host_;
  StepBuffers buffers_;
  Buffer arena_;
  std::int64_t host_piece_elems_ = 0;

  Streams streams_;
  ThreadPool pool_;
  std::optional<WeightSlots> weights_;
  std::optional<GradientNorms> norms_;
  std::optional<GradientSlots> gradients_;

  std::unique_ptr<Event> tokens_ready_;  // on h2d
  std::unique_ptr<Event> pass_ended_;    // on compute: activations and tokens may be overwritten
  std::unique_ptr<Event> d_stream_ready_;
  std::unique_ptr<Event> d_x_arrived_;
  std::unique_ptr<Event> logits_ready_;
  bool any_pass_ = false;
  bool any_embedding_gradient_ = false;
  std::array<StepRecord, kLossHistory> records_;
  std::int64_t steps_ = 0;
  StepScalars scalars_;                    // of the step's updates on the device
  std::unique_ptr<OptimizerQueue> queue_;  // only when training; last: its threads use the members above
};

}  // namespace ferry
