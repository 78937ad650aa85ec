// SPDX-License-Identifier: Apache-2.0
// Parameters in and out, results of steps, and the public face of the engine.
#include "offload/engine.h"

#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "model/initialize.h"
#include "offload/engine_impl.h"

namespace ferry {

void Engine::Impl::initialize(std::uint64_t seed) {
  constexpr std::int64_t kCut = std::int64_t{1} << 16;
  std::vector<float> values;
  for (std::size_t index = 0; index < parameters_.parameters().size(); ++index) {
    const ParameterInfo& info = parameters_.parameters()[index];
    const std::int64_t most = std::min<std::int64_t>(info.elems, 64 * kCut);
    for (std::int64_t first = 0; first < info.elems; first += most) {
      values.resize(static_cast<std::size_t>(std::min(most, info.elems - first)));
      const auto count = static_cast<std::int64_t>(values.size());
      pool_.parallel_for((count + kCut - 1) / kCut, [&](std::int64_t cut) {
        const std::int64_t begin = cut * kCut;
        const auto part = std::span(values).subspan(static_cast<std::size_t>(begin),
                                                    static_cast<std::size_t>(std::min(kCut, count - begin)));
        initial_values(config_, info, seed, first + begin, part);
      });
      set_parameter(index, first, values);
    }
  }
}

void Engine::Impl::set_parameter(std::size_t index, std::int64_t first, std::span<const float> values) {
  const ParameterInfo& info = parameters_.parameters().at(index);
  const auto count = static_cast<std::int64_t>(values.size());
  FERRY_ASSERT(first >= 0 && first + count <= info.elems);
  finish();
  weights_->invalidate();
  n_cached_ = 0;
  const std::int64_t offset = info.offset + first;
  if (arrays_.home_of(offset) == Home::kDevice) {
    set_device_parameter(offset, values);
  } else {
    const TensorView weight = arrays_.weights_at(offset, count);
    backend_.host_access(Access::kWrite, weight.data, weight.size_bytes(), "weights set by hand");
    store_weights(values, weight, arrays_.at(ParameterArray::kWeightLow, offset, count));
  }
}

void Engine::Impl::set_device_parameter(std::int64_t offset, std::span<const float> values) {
  const auto most = static_cast<std::size_t>(host_piece_elems_);
  for (std::size_t done = 0; done < values.size(); done += most) {
    const auto part = values.subspan(done, std::min(most, values.size() - done));
    const auto count = static_cast<std::int64_t>(part.size());
    const std::int64_t at = offset + static_cast<std::int64_t>(done);
    const TensorView low = arrays_.at(ParameterArray::kWeightLow, at, count);
    const TensorView staged(host_.memory.at(host_.piece), arrays_.dtype(), {count});
    const TensorView staged_low = low ? TensorView(host_.memory.at(host_.piece_low), DType::kI16, {count}) : low;
    backend_.host_access(Access::kWrite, staged.data, staged.size_bytes(), "weights set by hand");
    store_weights(part, staged, staged_low);
    streams_.to_device(arrays_.weights_at(at, count).data, staged.data, staged.size_bytes());
    if (low) streams_.to_device(low.data, staged_low.data, staged_low.size_bytes());
    backend_.sync(streams_.h2d.get());
  }
}

void Engine::Impl::for_each_piece(ParameterArray array, const PieceFn& fn) {
  finish();
  for (const ParameterInfo& info : parameters_.parameters()) {
    for (std::int64_t first = 0; first < info.elems; first += host_piece_elems_) {
      const std::int64_t count = std::min(host_piece_elems_, info.elems - first);
      TensorView piece = arrays_.at(array, info.offset + first, count);
      if (piece && arrays_.home_of(info.offset) == Home::kDevice) {
        void* const staged = host_.memory.at(host_.piece);
        streams_.to_host(staged, piece.data, piece.size_bytes());
        backend_.sync(streams_.d2h.get());
        piece.data = staged;
      }
      if (piece) backend_.host_access(Access::kRead, piece.data, piece.size_bytes(), "parameters");
      fn(info, first, piece);
    }
  }
}

std::optional<DType> Engine::Impl::dtype_of(ParameterArray array, const ParameterInfo& info) const {
  return arrays_.keeps(array, info.offset) ? std::optional(arrays_.dtype_of(array)) : std::nullopt;
}

void Engine::Impl::set_array(ParameterArray array, std::size_t index, std::int64_t first,
                             std::span<const std::byte> bytes) {
  const ParameterInfo& info = parameters_.parameters().at(index);
  const auto elem_bytes = static_cast<std::int64_t>(size_of(arrays_.dtype_of(array)));
  const std::int64_t count = std::ssize(bytes) / elem_bytes;
  FERRY_ASSERT(dtype_of(array, info) && first >= 0 && first + count <= info.elems &&
               count * elem_bytes == std::ssize(bytes));
  finish();
  weights_->invalidate();
  for (std::int64_t done = 0; done < count; done += host_piece_elems_) {
    const std::int64_t n = std::min(host_piece_elems_, count - done);
    const TensorView target = arrays_.at(array, info.offset + first + done, n);
    const bool on_device = arrays_.home_of(info.offset) == Home::kDevice;
    void* const host = on_device ? host_.memory.at(host_.piece) : target.data;
    backend_.host_access(Access::kWrite, host, target.size_bytes(), "parameters set by hand");
    std::memcpy(host, bytes.data() + done * elem_bytes, target.size_bytes());
    if (!on_device) continue;
    streams_.to_device(target.data, host, target.size_bytes());
    backend_.sync(streams_.h2d.get());
  }
}

StepCounts Engine::Impl::step_counts() {
  FERRY_ASSERT(options_.training);
  finish();
  return {.launched = steps_, .applied = queue_->applied_steps()};
}

void Engine::Impl::set_step_counts(const StepCounts& counts) {
  FERRY_ASSERT(options_.training && steps_ == 0);
  FERRY_ASSERT(counts.applied >= 0 && counts.applied <= counts.launched);
  queue_->start_at(counts.launched, counts.applied);
  steps_ = counts.launched;
}

void Engine::Impl::finish() {
  if (queue_) queue_->wait_for_all(steps_);
  for (const auto* stream : {&streams_.h2d, &streams_.compute, &streams_.d2h}) backend_.sync(stream->get());
}

double Engine::Impl::loss(std::int64_t step) {
  const StepRecord& record = records_[static_cast<std::size_t>(step % kLossHistory)];
  FERRY_ASSERT(step >= 0 && record.step == step);
  backend_.sync(record.loss_arrived.get());
  const float* const loss = host_.memory.as<float>(host_.losses) + step % kLossHistory;
  backend_.host_access(Access::kRead, loss, sizeof(float), "a loss");
  return static_cast<double>(*loss);
}

StepStats Engine::Impl::stats(std::int64_t step) {
  const StepRecord& record = records_[static_cast<std::size_t>(step % kLossHistory)];
  FERRY_ASSERT(step >= 0 && record.step == step);
  backend_.sync(record.ended.get());
  StepStats stats = record.stats;
  const StepVerdict verdict = queue_->verdict(step);
  stats.applied = verdict.applied;
  stats.grad_norm = verdict.grad_norm;
  stats.coefficient = verdict.coefficient;
  stats.compute_ms = backend_.elapsed_ms(record.begun.get(), record.ended.get());
  const StepRecord& before = records_[static_cast<std::size_t>((step + kLossHistory - 1) % kLossHistory)];
  const bool follows = step > 0 && before.step == step - 1;
  stats.step_ms = follows ? backend_.elapsed_ms(before.ended.get(), record.ended.get()) : stats.compute_ms;
  stats.adamw_ms = queue_->busy_ms(step);
  stats.wait_weights_ms = streams_.waits.ms(step, WaitCause::kWeights);
  stats.wait_optimizer_ms = streams_.waits.ms(step, WaitCause::kOptimizer);
  stats.wait_gradients_ms = streams_.waits.ms(step, WaitCause::kGradients);
  stats.wait_residuals_ms = streams_.waits.ms(step, WaitCause::kResiduals);
  stats.wait_input_ms = streams_.waits.ms(step, WaitCause::kInput);
  return stats;
}

void Engine::Impl::start_trace(std::int64_t n_steps) {
  FERRY_ASSERT(options_.training);
  streams_.timeline.start(steps_, n_steps, streams_.compute.get());
}

std::vector<TimelineSpan> Engine::Impl::take_trace() {
  finish();
  return streams_.timeline.take();
}

Engine::Engine(Backend& backend, const ModelConfig& config, const EngineOptions& options)
    : impl_(std::make_unique<Impl>(backend, config, options)) {}
Engine::~Engine() = default;

const ParameterTable& Engine::parameters() const { return impl_->parameters(); }
void Engine::initialize(std::uint64_t seed) { impl_->initialize(seed); }
void Engine::set_parameter(std::size_t index, std::int64_t first, std::span<const float> values) {
  impl_->set_parameter(index, first, values);
}
void Engine::for_each_piece(ParameterArray array, const PieceFn& fn) { impl_->for_each_piece(array, fn); }
std::optional<DType> Engine::dtype_of(ParameterArray array, const ParameterInfo& info) const {
  return impl_->dtype_of(array, info);
}
void Engine::set_array(ParameterArray array, std::size_t index, std::int64_t first, std::span<const std::byte> bytes) {
  impl_->set_array(array, index, first, bytes);
}
StepCounts Engine::step_counts() { return impl_->step_counts(); }
void Engine::set_step_counts(const StepCounts& counts) { impl_->set_step_counts(counts); }
std::int64_t Engine::train_step(const Batch& batch, double lr, const Batch* next) {
  return impl_->train_step(batch, lr, next);
}
double Engine::loss(std::int64_t step) { return impl_->loss(step); }
void Engine::finish() { impl_->finish(); }
StepStats Engine::stats(std::int64_t step) { return impl_->stats(step); }
void Engine::start_trace(std::int64_t n_steps) { impl_->start_trace(n_steps); }
std::vector<TimelineSpan> Engine::take_trace() { return impl_->take_trace(); }
double Engine::evaluate(const Batch& batch) { return impl_->evaluate(batch); }
std::vector<float> Engine::next_logits(std::span<const std::int32_t> ids) { return impl_->next_logits(ids); }
const PoolPlacement& Engine::pool_placement() const { return impl_->pool_placement(); }
std::vector<float> Engine::extend(std::span<const std::int32_t> ids) { return impl_->extend(ids); }
std::int64_t Engine::n_cached() const { return impl_->n_cached(); }
void Engine::reset_cache() { impl_->reset_cache(); }
std::vector<MemoryLine> Engine::device_memory() const { return impl_->device_memory(); }
std::vector<MemoryLine> Engine::host_memory() const { return impl_->host_memory(); }

}  // namespace ferry
