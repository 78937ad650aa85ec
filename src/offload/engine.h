// SPDX-License-Identifier: Apache-2.0
// The offload engine: trains a Llama whose weights, gradients and optimizer state live in host memory, layer by layer.
// docs/offload.md tells one step; the parts are weight_slots, gradient_slots, optimizer_queue and the model's
// functions.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "config/model_config.h"
#include "core/cpu_topology.h"
#include "data/batch_loader.h"
#include "model/llama.h"
#include "model/parameter_table.h"
#include "offload/memory_plan.h"
#include "offload/parameter_arrays.h"
#include "offload/timeline.h"
#include "optim/adamw.h"

namespace ferry {

enum class Offload {
  kAll,     // weights, gradients and optimizer state live on the host
  kLayers,  // those of the layers; embedding, head and final norm live on the device, their AdamW too
  kNone,    // everything lives on the device
};
/// How backward comes by a layer's activations.
enum class Recompute {
  kFull,  // the whole layer is computed again from its input, for comparison
  kLean,  // all but the down projection
  kNone,  // activations of every layer are kept on the device
};
/// Where the inputs of the layers wait for backward.
enum class Residuals {
  kDevice,
  kHost,  // but for the last ones
};
/// Which part of the (rows, vocabulary) logits exists at a time.
enum class HeadMode {
  kChunks,  // one micro-batch of one vocabulary chunk, made again for backward
  kLogits,  // all of them: nothing is made again
  kTokens,  // some rows of the whole vocabulary, with all of the head's weights on the device and their gradient in f32
};

#ifdef NDEBUG
inline constexpr bool kPoisonByDefault = false;
#else
inline constexpr bool kPoisonByDefault = true;
#endif

struct EngineOptions {
  DType dtype = DType::kBf16;
  std::int64_t batch_size = 1;  // sequences of a micro-batch
  std::int64_t accumulate = 1;  // micro-batches of the largest batch; smaller ones may be given
  std::int64_t seq_len = 1;     // the longest sequence
  bool training = true;         // false: forward only, no gradients and no optimizer state
  /// Tokens whose keys and values Engine::extend keeps, of one sequence; 0 = none. Forward only.
  std::int64_t cache_tokens = 0;
  AdamwOptions adamw;
  bool decay_embeddings = false;
  double grad_clip = 0;             // largest global norm of the gradients; 0 = none
  bool check_finite = true;         // losses and gradients
  std::vector<std::string> freeze;  // patterns of parameter names: see ParameterRules
  OptimizerState optimizer_state = OptimizerState::kF32;
  Offload offload = Offload::kAll;
  Recompute recompute = Recompute::kLean;
  std::int64_t keep_layers = 0;  // the last ones keep their activations, whatever `recompute` says
  MlpCut mlp_cut;                // where it cuts, gate and up are not kept but made again
  HeadMode head = HeadMode::kChunks;
  std::int64_t head_tokens = 0;  // rows, of HeadMode::kTokens
  int weight_slots = 2;
  int grad_slots = 2;
  Residuals residuals = Residuals::kDevice;
  std::int64_t resident_layers = 0;        // the first ones keep their weights on the device between fetches
  std::int64_t resident_state_layers = 0;  // the first ones live on the device, AdamW too
  std::int64_t vocab_chunk = 0;            // rows; 0 = chosen by the plan
  int threads = 0;                         // of the AdamW pool; 0 = as place_pool() finds best
  bool poison = kPoisonByDefault;          // what is no longer needed becomes NaN
  /// Size of the pieces in which segments travel and are updated. 16 MiB copies run at 50 of PCIe Gen5's 55 GB/s, and
  /// whole layers instead cost 10 % of a 1B step (H200, PCIe Gen5 x16).
  std::int64_t piece_bytes = std::int64_t{16} << 20;

  /// Sequences of the largest batch.
  std::int64_t max_sequences() const { return batch_size * accumulate; }
};

/// Bytes and times of one step. adamw_ms grows until the step's updates are done.
struct StepStats {
  bool applied = true;     // false: a gradient was not finite, and clipping skipped the step
  double grad_norm = 0;    // global, before clipping; NaN where norms are not taken
  double coefficient = 1;  // of clipping
  std::int64_t h2d_bytes = 0;
  std::int64_t d2h_bytes = 0;
  double step_ms = 0;           // since the last op of the step before; as compute_ms in the first
  double compute_ms = 0;        // first to last op of the step on the compute stream
  double adamw_ms = 0;          // the optimizer pool's busy time
  double launcher_wait_ms = 0;  // the launching thread's time blocked on updates
  // Time in which the compute stream stood still, by what it waited for: see WaitCause.
  double wait_weights_ms = 0;
  double wait_optimizer_ms = 0;
  double wait_gradients_ms = 0;
  double wait_residuals_ms = 0;
  double wait_input_ms = 0;
};

/// Where a run stands.
struct StepCounts {
  std::int64_t launched = 0;
  std::int64_t applied = 0;  // of these, those that AdamW counts: a skipped step is not

  bool operator==(const StepCounts&) const = default;
};

/// Not thread-safe: one thread drives it. Steps are launched asynchronously; the optimizer works behind the caller's
/// back. Errors of a device or of the optimizer's threads are thrown by the next call. A loss or gradient that is not
/// finite is one of them, unless grad_clip is set: then its step is skipped.
class Engine {
 public:
  /// Plans, then allocates everything. Throws Error{kConfig | kMemory}.
  Engine(Backend& backend, const ModelConfig& config, const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const ParameterTable& parameters() const;

  /// Random weights as Hugging Face makes them: normal(0, initializer_range), norms 1, by (seed, name, index).
  void initialize(std::uint64_t seed);
  /// Sets elements [first, first + values.size()) of parameter `index`; bf16 weights take the nearest value, and with
  /// f32 state the master keeps the rest. Moments stay as they are (0 at the start).
  void set_parameter(std::size_t index, std::int64_t first, std::span<const float> values);
  /// Element type of one array of a parameter; none where it is not kept.
  std::optional<DType> dtype_of(ParameterArray array, const ParameterInfo& info) const;
  /// Sets elements from `first` of one array of parameter `index`, which keeps it, to bytes of its element type: what
  /// for_each_piece handed out, bit for bit.
  void set_array(ParameterArray array, std::size_t index, std::int64_t first, std::span<const std::byte> bytes);
  /// Blocks until all updates are done.
  StepCounts step_counts();
  /// Goes on where another engine stood: the next step has number `launched`. Only before the first step.
  void set_step_counts(const StepCounts& counts);
  /// Waits for all updates, then hands out one array of each parameter in flat host pieces, in table order. An array
  /// that is not kept is handed out as absent views.
  using PieceFn = std::function<void(const ParameterInfo&, std::int64_t first, TensorView piece)>;
  void for_each_piece(ParameterArray array, const PieceFn& fn);
  void for_each_piece(const PieceFn& fn) { for_each_piece(ParameterArray::kWeight, fn); }

  /// Launches one training step at learning rate `lr`. Returns its number (0, 1, ...) before it has ended. The batch
  /// is cut into micro-batches of batch_size sequences; each layer visits the device once for all of them.
  /// `next`, if the caller knows it, is the batch of the next step: AdamW then updates the embedding rows that it reads
  /// before all others. It changes no bit, and the next step may be given another batch.
  /// Throws Error{kShape} before anything is launched: a batch larger than planned, or a token outside of the
  /// vocabulary.
  std::int64_t train_step(const Batch& batch, double lr, const Batch* next = nullptr);
  /// Mean loss of step `step`, one of the last kLossHistory. Blocks until it is there.
  double loss(std::int64_t step);
  static constexpr std::int64_t kLossHistory = 8;
  /// Blocks until every launched step and its updates have ended.
  void finish();
  /// Of step `step`, one of the last kLossHistory. Blocks until its gradients have arrived on the host.
  StepStats stats(std::int64_t step);

  /// Notes what every stream and thread does in the next `n_steps` steps. Blocks until the device is idle.
  void start_trace(std::int64_t n_steps);
  /// What has been noted since start_trace. Blocks until every launched step and its updates have ended.
  std::vector<TimelineSpan> take_trace();

  /// Sum of the losses over the batch's valid targets (nats), at the weights of the last launched step. Blocks.
  /// Throws Error{kShape} as train_step.
  double evaluate(const Batch& batch);
  /// Logits of the last position after `ids` (1 to seq_len of them). Blocks. Throws Error{kShape} as train_step.  ->
  /// (V)
  std::vector<float> next_logits(std::span<const std::int32_t> ids);
  /// The sequence in the key/value cache goes on with `ids` (1 or more, seq_len of them at a time); logits of its last
  /// position. Blocks. Throws Error{kShape} before anything is launched: more than cache_tokens in all, or a token
  /// outside of the vocabulary.  -> (V)
  std::vector<float> extend(std::span<const std::int32_t> ids);
  /// Tokens that the cache holds.
  std::int64_t n_cached() const;
  /// The next extend() begins a new sequence. So does set_parameter.
  void reset_cache();

  /// Of the threads that run AdamW.
  const PoolPlacement& pool_placement() const;
  /// Device memory at the peak, and host memory, by purpose. The device lines add up to backend.device_bytes().
  std::vector<MemoryLine> device_memory() const;
  std::vector<MemoryLine> host_memory() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ferry
