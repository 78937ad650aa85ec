// SPDX-License-Identifier: Apache-2.0
// The engine's parts and how they are put together; private to src/offload.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "core/thread_pool.h"
#include "offload/engine.h"
#include "offload/gradient_slots.h"
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

/// Where everything lives: offsets into the device arena by purpose.
struct DevicePlan {
  MemoryPlan memory;
  std::vector<MemoryPlan::Id> weight_slots;
  std::vector<MemoryPlan::Id> grad_slots;
  MemoryPlan::Id norm_weight_slot = 0;
  MemoryPlan::Id norm_grad_slot = 0;
  // Resident parameters; unused when they are streamed.
  MemoryPlan::Id weight = 0;
  MemoryPlan::Id weight_low = 0;
  MemoryPlan::Id m = 0;
  MemoryPlan::Id v = 0;
  MemoryPlan::Id embedding_gradient = 0;
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
  const ParameterTable& parameters() const { return parameters_; }
  std::vector<MemoryLine> device_memory() const { return plan_.memory.peak_lines(); }
  std::vector<MemoryLine> host_memory() const { return host_lines_; }

  // engine_step.cpp: passes
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

  bool resident() const { return options_.offload == Offload::kNone; }

  // engine_setup.cpp: plan and allocation
  void plan_parameters();
  void allocate_host_arrays();
  void bind_device_arrays();
  void create_slots();
  void allocate_staging();
  void* allocate_host(std::size_t size_bytes, const std::string& purpose);
  void* at(MemoryPlan::Id id) const;
  void upload_rope_table();

  void set_resident_parameter(std::int64_t offset, std::span<const float> values);

  Pass begin_pass(std::int64_t batch_size, std::int64_t seq_len, PassOps::Kind kind);
  void upload_tokens(const LlamaShape& shape, std::span<const std::int32_t> inputs,
                     std::span<const std::int32_t> targets);
  void embed(const Pass& pass, std::span<const std::int32_t> inputs, Event* begun = nullptr);
  void wait_for_rows(std::span<const std::int32_t> ids);
  void forward_layers(const Pass& pass);
  void head_forward(const Pass& pass, float scale, const TensorView& loss);
  void head_backward(const Pass& pass, float scale);
  void train_head(const Pass& pass, float scale, StepRecord& record);
  void backward_layers(const Pass& pass);
  void embed_backward(const Pass& pass, std::span<const std::int32_t> inputs);
  void end_pass();
  void read_loss(const TensorView& loss, float* host, Event* arrived);

  GradientLease acquire_gradient(int segment);
  void finish_gradient(const GradientLease& lease);
  /// AdamW on the device for the parameters of [offset, offset + gradient.elems()).
  void update_resident(std::int64_t offset, const TensorView& gradient);

  Backend& backend_;
  const ModelConfig config_;
  const EngineOptions options_;
  const ParameterTable parameters_;
  const PieceTable pieces_;
  DevicePlan plan_;
  StepBuffers buffers_;
  Buffer arena_;
  std::vector<Buffer> host_buffers_;
  std::vector<MemoryLine> host_lines_;
  ParameterArrays arrays_;
  // Host memory that copies go through.
  std::int32_t* host_tokens_ = nullptr;  // ids, targets, order: 3 N
  void* host_x_ = nullptr;               // (N, C), gathered embedding rows
  void* host_d_x_ = nullptr;             // (N, C), gradient of the embedding rows
  float* host_losses_ = nullptr;         // kLossHistory + 1
  std::int64_t host_piece_elems_ = 0;
  void* host_piece_ = nullptr;      // one piece of any array; only when they are resident
  void* host_piece_low_ = nullptr;  // its low halves
  void* host_logits_ = nullptr;     // one row of one chunk

  Streams streams_;
  ThreadPool pool_;
  std::optional<WeightSlots> weights_;
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
  StepScalars scalars_;
  std::unique_ptr<OptimizerQueue> queue_;  // last: its threads use the members above
};

}  // namespace ferry
