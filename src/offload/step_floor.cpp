// SPDX-License-Identifier: Apache-2.0
// The model's own functions record a step's ops; those without arithmetic of note are dropped.
#include "offload/step_floor.h"

#include <cmath>

#include "backend/op_cost.h"
#include "backend/random_fill.h"
#include "core/error.h"
#include "offload/engine_impl.h"

namespace ferry {

StepFloor::StepFloor(Backend& backend, const ModelConfig& config, const EngineOptions& options)
    : backend_(backend),
      config_(checked_model(config, options)),
      options_(options),
      parameters_(config_, choose_vocab_chunk(config_, options_)),
      buffers_(plan_, backend, config_, options_, parameters_),
      stream_(backend.create_stream("floor")) {
  FERRY_ASSERT(options.training);
  plan_.pack();
  arena_ = backend_.allocate_device(plan_.arena_bytes(), "activations");
  buffers_.bind(arena_.data());
  const std::int64_t slot_elems = parameters_.max_streamed_elems();
  const std::size_t slot_bytes = static_cast<std::size_t>(slot_elems) * size_of(options_.dtype);
  for (Buffer& slot : weights_) slot = backend_.allocate_device(slot_bytes, "weight slots");
  for (Buffer& slot : gradients_) slot = backend_.allocate_device(slot_bytes, "gradient slots");
  fill(options_.dtype, plan_.arena_bytes(), slot_elems);
  record_ops(LlamaShape(config_, options_.batch_size, options_.seq_len));
}

/// Activations of deviation 1 and weights that keep it. f32 buffers in a bf16 arena are written before they are read.
void StepFloor::fill(DType dtype, std::size_t arena_bytes, std::int64_t slot_elems) {
  RandomFill(backend_, dtype, 1)
      .fill(stream_.get(), arena_.data(), static_cast<std::int64_t>(arena_bytes / size_of(dtype)));
  const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(config_.hidden_size)));
  const RandomFill weights(backend_, dtype, scale);
  for (const Buffer& slot : weights_) weights.fill(stream_.get(), slot.data(), slot_elems);
}

void StepFloor::record_ops(const LlamaShape& shape) {
  std::vector<Op> all;
  const OpContext context{
      .backend = backend_, .stream = nullptr, .scratch = {}, .measured_bytes = nullptr, .recorded = &all};
  const LayerWork work = buffers_.work(shape);
  const RopeTable rope = buffers_.rope(shape);
  const auto slot = [&](const std::array<Buffer, kSlots>& slots, std::int64_t layer) {
    return layer_tensors(shape, options_.dtype, slots[static_cast<std::size_t>(layer) % kSlots].data());
  };
  for (std::int64_t layer = 0; layer < config_.n_layers; ++layer) {
    layer_forward(context, shape, rope, slot(weights_, layer), buffers_.residual(shape, layer),
                  buffers_.residual(shape, layer + 1), buffers_.kept(shape, layer), work);
  }
  record_head(context, shape);
  const bool recompute = options_.recompute == Recompute::kLean;
  for (std::int64_t layer = config_.n_layers; layer-- > 0;) {
    const LayerTensors weights = slot(weights_, layer);
    const LayerKept kept = buffers_.kept(shape, layer);
    const TensorView x = buffers_.residual(shape, layer);
    if (recompute) layer_recompute(context, shape, rope, weights, x, kept, work);
    layer_backward(context, shape, rope, weights, x, kept, work, buffers_.d_stream(shape), slot(gradients_, layer),
                   recompute);
  }
  for (const Op& op : all) {
    if (op_flop(op) > 0) ops_.push_back(op);
  }
}

void StepFloor::record_head(const OpContext& context, const LlamaShape& shape) {
  const HeadWork work = buffers_.head(shape);
  const TensorView targets = buffers_.targets(shape);
  const auto rows_of = [&](const std::array<Buffer, kSlots>& slots, int index) {
    const std::int64_t n_rows = parameters_.segment(parameters_.head_segment(index)).n_rows;
    return TensorView(slots[static_cast<std::size_t>(index) % kSlots].data(), options_.dtype, {n_rows, shape.C});
  };
  const int n_chunks = parameters_.n_head_segments();
  for (int i = 0; i < n_chunks; ++i) head_chunk_forward(context, {.weight = rows_of(weights_, i)}, targets, work);
  for (int i = n_chunks; i-- > 0;) {
    const bool first = i == n_chunks - 1;
    head_chunk_backward(context, {.weight = rows_of(weights_, i)}, targets, {.first = first, .logits_fresh = first},
                        rows_of(gradients_, i), work);
  }
}

double StepFloor::flop() const {
  double total = 0;
  for (const Op& op : ops_) total += op_flop(op);
  return total;
}

void StepFloor::enqueue_step() {
  for (const Op& op : ops_) backend_.enqueue(stream_.get(), op, buffers_.scratch());
}

std::vector<double> StepFloor::run(double seconds) {
  constexpr std::size_t kMarks = kQueued + 1;
  std::array<std::unique_ptr<Event>, kMarks> marks;  // marks[i % kMarks]: the end of step i, the start of the next
  for (auto& mark : marks) mark = backend_.create_event();
  const auto mark = [&marks](std::size_t step) { return marks[step % kMarks].get(); };
  std::vector<double> step_ms;
  double total_ms = 0;
  enqueue_step();
  backend_.record(mark(0), stream_.get());
  std::size_t enqueued = 0;
  for (std::size_t step = 1; step == 1 || total_ms < seconds * 1e3; ++step) {
    for (; enqueued < step + kQueued - 1; ++enqueued) {
      enqueue_step();
      backend_.record(mark(enqueued + 1), stream_.get());
    }
    backend_.sync(mark(step));
    step_ms.push_back(backend_.elapsed_ms(mark(step - 1), mark(step)));
    total_ms += step_ms.back();
  }
  backend_.sync(stream_.get());
  return step_ms;
}

}  // namespace ferry
