// SPDX-License-Identifier: Apache-2.0
// The model's own functions record a step's ops; those without arithmetic of note are dropped.
#include "offload/step_floor.h"

#include <cmath>

#include "backend/op_cost.h"
#include "backend/random_fill.h"
#include "core/error.h"
#include "offload/step_plan.h"

namespace ferry {
namespace {

bool is_of(FloorPart part, const Op& op) {
  switch (part) {
    case FloorPart::kAll: return true;
    case FloorPart::kProducts: return std::holds_alternative<Matmul>(op);
    case FloorPart::kAttentionForward: return std::holds_alternative<AttentionForward>(op);
    case FloorPart::kAttentionBackward: return std::holds_alternative<AttentionBackward>(op);
  }
  return false;
}

}  // namespace

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
  record_ops(LlamaShape(config_, options_.max_sequences(), options_.seq_len));
}

/// Activations of deviation 1 and weights that keep it. What is f32 in a bf16 arena is written before it is read, or is
/// a sum that no product takes.
void StepFloor::fill(DType dtype, std::size_t arena_bytes, std::int64_t slot_elems) {
  RandomFill(backend_, dtype, 1)
      .fill(stream_.get(), arena_.data(), static_cast<std::int64_t>(arena_bytes / size_of(dtype)));
  const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(config_.hidden_size)));
  const RandomFill weights(backend_, dtype, scale);
  for (const Buffer& slot : weights_) weights.fill(stream_.get(), slot.data(), slot_elems);
}

void StepFloor::record_ops(const LlamaShape& batch) {
  std::vector<Op> all;
  const OpContext context{.backend = nullptr, .stream = nullptr, .scratch = {}, .recorded = &all};
  const PassOps ops(buffers_, context, batch, PassOps::Kind::kTraining);
  for (std::int64_t layer = 0; layer < config_.n_layers; ++layer) {
    const int segment = parameters_.layer_segment(layer);
    ops.forward_layer(layer, in_slot(weights_, layer, segment));
  }
  record_head(ops);
  for (std::int64_t layer = config_.n_layers; layer-- > 0;) {
    const int segment = parameters_.layer_segment(layer);
    ops.backward_layer(layer, in_slot(weights_, layer, segment), in_slot(gradients_, layer, segment));
  }
  for (const Op& op : all) {
    if (op_flop(op) > 0) ops_.push_back(op);
  }
}

void StepFloor::record_head(const PassOps& ops) {
  const int n_chunks = parameters_.n_head_segments();
  for (int i = 0; i < n_chunks; ++i) {
    const int segment = parameters_.head_segment(i);
    ops.head_forward(parameters_.segment(segment), in_slot(weights_, i, segment));
  }
  ops.head_loss(1, buffers_.loss(0));
  for (int i = n_chunks; i-- > 0;) {
    const int segment = parameters_.head_segment(i);
    ops.head_backward(parameters_.segment(segment), in_slot(weights_, i, segment),
                      {.gradient = in_slot(gradients_, i, segment), .scale = 1});
  }
}

TensorView StepFloor::in_slot(const Slots& slots, std::int64_t turn, int segment) const {
  void* slot = slots[static_cast<std::size_t>(turn) % kSlots].data();
  return {slot, options_.dtype, {parameters_.segment(segment).elems}};
}

double StepFloor::flop(FloorPart part) const {
  double total = 0;
  for (const Op& op : ops_) total += is_of(part, op) ? op_flop(op) : 0;
  return total;
}

void StepFloor::enqueue_step(FloorPart part) {
  for (const Op& op : ops_) {
    if (is_of(part, op)) backend_.enqueue(stream_.get(), op, buffers_.scratch());
  }
}

std::vector<double> StepFloor::run(double seconds, FloorPart part) {
  constexpr std::size_t kMarks = kQueued + 1;
  std::array<std::unique_ptr<Event>, kMarks> marks;  // marks[i % kMarks]: the end of step i, the start of the next
  for (auto& mark : marks) mark = backend_.create_event();
  const auto mark = [&marks](std::size_t step) { return marks[step % kMarks].get(); };
  std::vector<double> step_ms;
  double total_ms = 0;
  enqueue_step(part);
  backend_.record(mark(0), stream_.get());
  std::size_t enqueued = 0;
  for (std::size_t step = 1; step == 1 || total_ms < seconds * 1e3; ++step) {
    for (; enqueued < step + kQueued - 1; ++enqueued) {
      enqueue_step(part);
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
