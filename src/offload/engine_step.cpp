// SPDX-License-Identifier: Apache-2.0
// The passes of the engine: a training step and evaluation.
#include <algorithm>

#include "core/error.h"
#include "offload/engine_impl.h"

namespace ferry {

void check_ids(std::span<const std::int32_t> ids, std::int64_t vocab_size, bool targets) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const bool fine = (ids[i] >= 0 && ids[i] < vocab_size) || (targets && ids[i] == kIgnoreIndex);
    FERRY_CHECK(fine, kShape, "{} {} of the batch is token {}: expected 0 to {}", targets ? "target" : "input", i,
                ids[i], vocab_size - 1);
  }
}

namespace {

void check_batch(const Batch& batch, const EngineOptions& options) {
  FERRY_CHECK(batch.batch_size >= 1 && batch.seq_len >= 1, kShape, "batch is {} x {}: expected 1 x 1 or more",
              batch.batch_size, batch.seq_len);
  FERRY_CHECK(batch.batch_size <= options.max_sequences() && batch.seq_len <= options.seq_len, kShape,
              "batch is {} x {}, the engine was planned for {} x {}", batch.batch_size, batch.seq_len,
              options.max_sequences(), options.seq_len);
  const auto n = static_cast<std::size_t>(batch.batch_size * batch.seq_len);
  FERRY_CHECK(batch.inputs.size() == n && batch.targets.size() == n, kShape,
              "batch of {} x {} has {} inputs and {} targets", batch.batch_size, batch.seq_len, batch.inputs.size(),
              batch.targets.size());
}

float mean_scale(const Batch& batch) {
  return batch.n_valid_targets > 0 ? static_cast<float>(1.0 / static_cast<double>(batch.n_valid_targets)) : 0.0F;
}

}  // namespace

std::int64_t Engine::Impl::train_step(const Batch& batch, double lr, const Batch* next) {
  FERRY_ASSERT(options_.training);
  check_batch(batch, options_);
  check_ids(batch.inputs, config_.vocab_size, false);
  check_ids(batch.targets, config_.vocab_size, true);
  if (next != nullptr) check_ids(next->inputs, config_.vocab_size, false);
  const std::int64_t step = steps_;
  const auto rows =
      next_rows_ && next_inputs_ == batch.inputs ? next_rows_ : std::make_shared<const BatchRows>(batch.inputs);
  next_inputs_ = next != nullptr ? next->inputs : std::vector<std::int32_t>();
  next_rows_ = next != nullptr ? std::make_shared<const BatchRows>(next_inputs_) : nullptr;
  scalars_ = queue_->begin_step(step, lr, rows, next_rows_);
  if (norms_) norms_->begin_step(step);
  StepRecord& record = records_[static_cast<std::size_t>(step % kLossHistory)];
  const StepStats before{.h2d_bytes = streams_.h2d_bytes, .d2h_bytes = streams_.d2h_bytes};
  const double waited_before = queue_->waited_ms();
  streams_.timeline.begin_step(step);
  streams_.waits.begin_step(step);
  streams_.waits.begin();  // for the input; embed() ends it

  const Pass pass = begin_pass(batch.batch_size, batch.seq_len, PassOps::Kind::kTraining);
  upload_tokens(pass.shape(), batch.inputs, batch.targets, rows.get());
  residuals_->begin_pass(pass.shape());
  embed(pass, batch.inputs, *rows, record.begun.get());
  submit_other_rows();
  forward_layers(pass);
  train_head(pass, mean_scale(batch), record);
  backward_layers(pass);
  embed_backward(pass, *rows);
  if (queue_->deferred() && anything_on(Home::kDevice)) update_all_on_device(step);
  backend_.record(record.ended.get(), streams_.compute.get());
  end_pass();
  streams_.waits.end_step();
  streams_.timeline.end_step();

  record.step = step;
  record.stats = {.h2d_bytes = streams_.h2d_bytes - before.h2d_bytes,
                  .d2h_bytes = streams_.d2h_bytes - before.d2h_bytes,
                  .launcher_wait_ms = queue_->waited_ms() - waited_before};
  ++steps_;
  return step;
}

double Engine::Impl::evaluate(const Batch& batch) {
  check_batch(batch, options_);
  check_ids(batch.inputs, config_.vocab_size, false);
  check_ids(batch.targets, config_.vocab_size, true);
  const Pass pass = begin_pass(batch.batch_size, batch.seq_len, PassOps::Kind::kForward);
  upload_tokens(pass.shape(), batch.inputs, batch.targets);
  embed(pass, batch.inputs, BatchRows(batch.inputs));
  forward_layers(pass);
  pass.ops.head_norm(weights_->acquire(parameters_.final_norm_segment()).weights());
  const TensorView loss = buffers_.loss(kLossHistory);
  head_forward(pass, 1.0F, loss);
  end_pass();
  float* const host = host_.memory.as<float>(host_.losses) + kLossHistory;
  read_loss(loss, host, logits_ready_.get());
  backend_.sync(logits_ready_.get());
  backend_.host_access(Access::kRead, host, sizeof(float), "a loss");
  return static_cast<double>(*host);
}

Pass Engine::Impl::begin_pass(std::int64_t batch_size, std::int64_t seq_len, PassOps::Kind kind) {
  Pass pass{.ops = PassOps(buffers_, compute_context(), LlamaShape(config_, batch_size, seq_len), kind),
            .head_chunks = head_chunks()};
  start(pass);
  return pass;
}

OpContext Engine::Impl::compute_context() {
  return {.backend = &backend_, .stream = streams_.compute.get(), .scratch = buffers_.scratch()};
}

std::vector<int> Engine::Impl::head_chunks() const {
  std::vector<int> chunks;
  for (int chunk = 0; chunk < parameters_.n_head_segments(); ++chunk) chunks.push_back(parameters_.head_segment(chunk));
  return chunks;
}

/// The route of the weights, and the order of this pass after the one before it.
void Engine::Impl::start(const Pass& pass) {
  std::vector<int> route;
  for (std::int64_t layer = 0; layer < config_.n_layers; ++layer) route.push_back(parameters_.layer_segment(layer));
  if (!pass.head_chunks.empty()) route.push_back(parameters_.final_norm_segment());
  route.insert(route.end(), pass.head_chunks.begin(), pass.head_chunks.end());
  if (pass.training()) {
    if (pass.ops.head_visits_twice()) route.insert(route.end(), pass.head_chunks.rbegin(), pass.head_chunks.rend());
    for (std::int64_t layer = config_.n_layers; layer-- > 0;) route.push_back(parameters_.layer_segment(layer));
  }
  weights_->begin_pass(steps_, std::move(route));
  if (any_pass_) backend_.wait(streams_.h2d.get(), pass_ended_.get());
  if (options_.poison) buffers_.poison(pass.context());
}

void Engine::Impl::end_pass() {
  backend_.record(pass_ended_.get(), streams_.compute.get());
  any_pass_ = true;
}

void Engine::Impl::forward_layers(const Pass& pass) {
  if (pass.training()) residuals_->written(0);
  for (std::int64_t layer = 0; layer < config_.n_layers; ++layer) {
    const WeightLease lease = weights_->acquire(parameters_.layer_segment(layer));
    if (pass.training()) residuals_->reserve(layer + 1);
    streams_.on_compute({"forward", parameters_.layer_segment(layer)},
                        [&] { pass.ops.forward_layer(layer, lease.weights()); });
    if (pass.training()) residuals_->written(layer + 1);
  }
}

void Engine::Impl::train_head(const Pass& pass, float scale, StepRecord& record) {
  if (any_embedding_gradient_) streams_.wait_on_compute(d_x_arrived_.get(), WaitCause::kGradients);  // for d_stream
  const WeightLease norm = weights_->acquire(parameters_.final_norm_segment());
  streams_.on_compute({"forward", parameters_.final_norm_segment()}, [&] { pass.ops.head_norm(norm.weights()); });
  const std::int64_t place = steps_ % kLossHistory;
  head_forward(pass, scale, buffers_.loss(place));
  float* const loss = host_.memory.as<float>(host_.losses) + place;
  read_loss(buffers_.loss(place), loss, record.loss_arrived.get());
  if (options_.check_finite) queue_->submit_loss(std::span(loss, 1), record.loss_arrived.get());
  head_backward(pass, scale);
  const GradientLease gradient = gradients_->acquire(parameters_.final_norm_segment());
  streams_.on_compute({"backward", gradient.segment},
                      [&] { pass.ops.head_norm_backward(norm.weights(), gradient.gradient); });
  residuals_->release(config_.n_layers);
  finish_gradient(pass.context(), gradient);
}

void Engine::Impl::head_forward(const Pass& pass, float scale, const TensorView& loss) {
  for (const int segment : pass.head_chunks) {
    const WeightLease lease = weights_->acquire(segment);
    streams_.on_compute({"forward", segment},
                        [&] { pass.ops.head_forward(parameters_.segment(segment), lease.weights()); });
  }
  streams_.on_compute({"loss"}, [&] { pass.ops.head_loss(scale, loss); });
}

/// Chunks in descending order: the last one's weights and logits are still there.
void Engine::Impl::head_backward(const Pass& pass, float scale) {
  for (auto it = pass.head_chunks.rbegin(); it != pass.head_chunks.rend(); ++it) {
    std::optional<WeightLease> lease;
    if (pass.ops.head_visits_twice()) lease.emplace(weights_->acquire(*it));
    const GradientLease gradient = gradients_->acquire(*it);
    streams_.on_compute({"backward", *it}, [&] {
      pass.ops.head_backward(parameters_.segment(*it), lease ? lease->weights() : TensorView(),
                             {.gradient = gradient.gradient, .scale = scale});
    });
    finish_gradient(pass.context(), gradient);
  }
}

void Engine::Impl::backward_layers(const Pass& pass) {
  for (std::int64_t layer = config_.n_layers; layer-- > 0;) {
    const int segment = parameters_.layer_segment(layer);
    const WeightLease lease = weights_->acquire(segment);
    const GradientLease gradient = gradients_->acquire(segment);
    residuals_->acquire(layer);
    streams_.on_compute({"backward", segment},
                        [&] { pass.ops.backward_layer(layer, lease.weights(), gradient.gradient); });
    residuals_->release(layer);
    finish_gradient(pass.context(), gradient);
  }
}

void Engine::Impl::read_loss(const TensorView& loss, float* host, Event* arrived) {
  streams_.order(streams_.compute.get(), streams_.d2h.get(), arrived);
  streams_.to_host(host, loss.data, loss.size_bytes(), {"loss"});
  backend_.record(arrived, streams_.d2h.get());
}

void Engine::Impl::finish_gradient(const OpContext& context, const GradientLease& lease) {
  const Segment& segment = parameters_.segment(lease.segment);
  const bool is_table = segment.offset < parameters_.parameters().front().elems;  // a tied one: its rows come last
  if (norms_) {
    const bool rows_come = is_table && parameters_.parameters().front().trained;
    const TensorView skip = rows_come ? buffers_.row_mask() : TensorView();
    streams_.on_compute({"norms", lease.segment}, [&] { norms_->take(context, lease.segment, lease.gradient, skip); });
  }
  gradients_->send(lease);
  const bool on_device = arrays_.home_of(segment.offset) == Home::kDevice;
  if (on_device && !is_table && !queue_->deferred()) update_on_device(lease.segment, lease.gradient);
}

void Engine::Impl::update_on_device(int segment, const TensorView& gradient) {
  const Segment& info = parameters_.segment(segment);
  const OpContext context{.backend = &backend_, .stream = streams_.compute.get(), .scratch = {}};
  streams_.on_compute({"AdamW", segment}, [&] {
    for (const ParameterRange& part : parameter_ranges(parameters_, info.offset, info.elems)) {
      const auto [offset, elems, decayed, parameter, element] = part;
      context.run(Adamw{.weight = arrays_.weights_at(offset, elems),
                        .weight_low = arrays_.at(ParameterArray::kWeightLow, offset, elems),
                        .m = arrays_.at(ParameterArray::kFirstMoment, offset, elems),
                        .v = arrays_.at(ParameterArray::kSecondMoment, offset, elems),
                        .gradient = gradient.columns(offset - info.offset, elems),
                        .scalars = scalars_.of(part),
                        .parameter = parameter,
                        .element = element});
    }
  });
}

/// With clipping: the launching thread learns the step's norm, then launches all updates.
void Engine::Impl::update_all_on_device(std::int64_t step) {
  streams_.waits.begin();
  const StepVerdict verdict = queue_->verdict(step);
  streams_.waits.end(WaitCause::kOptimizer);
  if (!verdict.applied) return;
  scalars_ = verdict.scalars;
  for (std::size_t i = 0; i < parameters_.segments().size(); ++i) {
    const Segment& segment = parameters_.segment(static_cast<int>(i));
    if (arrays_.home_of(segment.offset) == Home::kHost || !parameters_.is_trained(segment)) continue;
    update_on_device(static_cast<int>(i), arrays_.gradients_at(segment.offset, segment.elems));
  }
}

}  // namespace ferry
