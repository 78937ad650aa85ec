// SPDX-License-Identifier: Apache-2.0
// Allocating everything that the engine will ever use.
#include "offload/engine_impl.h"

namespace ferry {

Engine::Impl::Impl(Backend& backend, const ModelConfig& config, const EngineOptions& options)
    : backend_(backend),
      plan_(config, options, backend),
      pieces_(parameters_, plan_.piece_elems()),
      host_piece_elems_(plan_.piece_elems()),
      streams_(backend, options.poison, parameters_, pieces_),
      pool_placement_(place_pool(options.threads, backend.capabilities().numa_node)),
      pool_(pool_placement_) {
  arena_ = backend_.allocate_device(plan_.device.memory.arena_bytes(), "the device arena");
  buffers_.bind(arena_.data());
  host_.memory.allocate(backend_, pool_);
  bind_arrays();
  create_events();
  create_slots();
  upload_rope_table();
  reset_cache();
}

Engine::Impl::~Impl() {
  try {
    finish();
  } catch (const std::exception&) {
    // What failed has been, or would have been, thrown to the caller by the call before.
  }
}

void* Engine::Impl::at(MemoryPlan::Id id) const {
  return static_cast<std::byte*>(arena_.data()) + plan_.device.memory.offset(id);
}

void Engine::Impl::bind_arrays() {
  for (std::size_t i = 0; i < plan_.device.arrays.size(); ++i) {
    const auto array = static_cast<ParameterArray>(i);
    arrays_.bind(array, Home::kHost, host_.memory.at(host_.arrays[i]));
    const auto size = static_cast<std::int64_t>(arrays_.size_bytes(array, Home::kDevice));
    if (size == 0) continue;
    arrays_.bind(array, Home::kDevice, at(plan_.device.arrays[i]));
    const DType dtype = arrays_.dtype_of(array);
    const TensorView whole(at(plan_.device.arrays[i]), dtype, {size / static_cast<std::int64_t>(size_of(dtype))});
    backend_.enqueue(streams_.compute.get(), Fill{.x = whole});
  }
}

void Engine::Impl::create_slots() {
  if (options_.training) {
    const OptimizerQueueOptions queue{.adamw = options_.adamw,
                                      .grad_clip = options_.grad_clip,
                                      .norms = plan_.takes_norms(),
                                      .timeline = &streams_.timeline};
    queue_ = std::make_unique<OptimizerQueue>(backend_, parameters_, pieces_, arrays_, queue, pool_);
  }
  WeightSlotMemory memory;
  for (const MemoryPlan::Id id : plan_.device.weight_slots) memory.shared.push_back(at(id));
  for (const auto& [segment, id] : plan_.device.own_slots) memory.own.push_back({segment, at(id)});
  weights_.emplace(streams_, parameters_, pieces_, arrays_, queue_.get(), memory);
  if (!options_.training) return;
  const std::int64_t residual_elems = options_.max_sequences() * options_.seq_len * config_.hidden_size;
  residuals_.emplace(streams_, buffers_, host_.memory.at(host_.residuals),
                     static_cast<std::size_t>(residual_elems) * size_of(options_.dtype));
  if (plan_.takes_norms()) {
    norms_.emplace(streams_, parameters_, *queue_, static_cast<float*>(at(plan_.device.norms)),
                   host_.memory.as<float>(host_.norms));
  }
  std::vector<void*> slots;
  for (const MemoryPlan::Id id : plan_.device.grad_slots) slots.push_back(at(id));
  gradients_.emplace(streams_, parameters_, pieces_, arrays_, *queue_, norms_ ? &*norms_ : nullptr, std::move(slots),
                     at(plan_.device.norm_grad_slot));
}

void Engine::Impl::create_events() {
  for (auto* event : {&tokens_ready_, &pass_ended_, &d_stream_ready_, &d_x_arrived_, &logits_ready_}) {
    *event = backend_.create_event();
  }
  for (StepRecord& record : records_) {
    for (auto* event : {&record.begun, &record.ended, &record.loss_arrived}) *event = backend_.create_event();
  }
}

void Engine::Impl::upload_rope_table() {
  const RopeTable table = buffers_.rope(LlamaShape(config_, 1, buffers_.n_positions()));
  const std::size_t table_bytes = table.cos.size_bytes();
  const Buffer host = backend_.allocate_host(2 * table_bytes, "RoPE tables");
  auto* cos = static_cast<float*>(host.data());
  float* sin = cos + table.cos.elems();
  fill_rope_table(config_, buffers_.n_positions(), cos, sin);
  streams_.to_device(table.cos.data, cos, table_bytes);
  streams_.to_device(table.sin.data, sin, table_bytes);
  backend_.sync(streams_.h2d.get());
  backend_.sync(streams_.compute.get());
}

}  // namespace ferry
