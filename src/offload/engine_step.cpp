// SPDX-License-Identifier: Apache-2.0
// The passes of the engine: a training step, evaluation, and the logits of one position.
#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "offload/engine_impl.h"
#include "optim/embedding_rows.h"

namespace ferry {
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

void check_ids(std::span<const std::int32_t> ids, std::int64_t vocab_size, bool targets) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const bool fine = (ids[i] >= 0 && ids[i] < vocab_size) || (targets && ids[i] == kIgnoreIndex);
    FERRY_CHECK(fine, kShape, "{} {} of the batch is token {}: expected 0 to {}", targets ? "target" : "input", i,
                ids[i], vocab_size - 1);
  }
}

float mean_scale(const Batch& batch) {
  return batch.n_valid_targets > 0 ? static_cast<float>(1.0 / static_cast<double>(batch.n_valid_targets)) : 0.0F;
}

}  // namespace

std::int64_t Engine::Impl::train_step(const Batch& batch, double lr) {
  FERRY_ASSERT(options_.training);
  check_batch(batch, options_);
  check_ids(batch.inputs, config_.vocab_size, false);
  check_ids(batch.targets, config_.vocab_size, true);
  const std::int64_t step = steps_;
  scalars_ = {.decayed = adamw_scalars(options_.adamw, lr, step + 1, true),
              .plain = adamw_scalars(options_.adamw, lr, step + 1, false)};
  if (queue_) queue_->begin_step(step, scalars_);
  StepRecord& record = records_[static_cast<std::size_t>(step % kLossHistory)];
  const StepStats before{.h2d_bytes = streams_.h2d_bytes, .d2h_bytes = streams_.d2h_bytes};
  const double waited_before = queue_ ? queue_->waited_ms() : 0;

  const Pass pass = begin_pass(batch.batch_size, batch.seq_len, PassOps::Kind::kTraining);
  upload_tokens(pass.shape(), batch.inputs, batch.targets);
  embed(pass, batch.inputs, record.begun.get());
  forward_layers(pass);
  train_head(pass, mean_scale(batch), record);
  backward_layers(pass);
  embed_backward(pass, batch.inputs);
  backend_.record(record.ended.get(), streams_.compute.get());
  end_pass();

  record.step = step;
  record.stats = {.h2d_bytes = streams_.h2d_bytes - before.h2d_bytes,
                  .d2h_bytes = streams_.d2h_bytes - before.d2h_bytes,
                  .launcher_wait_ms = (queue_ ? queue_->waited_ms() : 0) - waited_before};
  ++steps_;
  return step;
}

double Engine::Impl::evaluate(const Batch& batch) {
  check_batch(batch, options_);
  check_ids(batch.inputs, config_.vocab_size, false);
  check_ids(batch.targets, config_.vocab_size, true);
  const Pass pass = begin_pass(batch.batch_size, batch.seq_len, PassOps::Kind::kForward);
  upload_tokens(pass.shape(), batch.inputs, batch.targets);
  embed(pass, batch.inputs);
  forward_layers(pass);
  pass.ops.head_norm(weights_->acquire(parameters_.final_norm_segment()).weights());
  const TensorView loss = buffers_.loss(kLossHistory);
  head_forward(pass, 1.0F, loss);
  end_pass();
  read_loss(loss, host_losses_ + kLossHistory, logits_ready_.get());
  backend_.sync(logits_ready_.get());
  return static_cast<double>(host_losses_[kLossHistory]);
}

std::vector<float> Engine::Impl::next_logits(std::span<const std::int32_t> ids) {
  const auto n = static_cast<std::int64_t>(ids.size());
  FERRY_CHECK(n >= 1 && n <= options_.seq_len, kShape, "{} ids: expected 1 to {}", n, options_.seq_len);
  check_ids(ids, config_.vocab_size, false);
  const Pass pass = begin_pass(1, n, PassOps::Kind::kForward);
  upload_tokens(pass.shape(), ids, {});
  embed(pass, ids);
  forward_layers(pass);
  const HeadCall call{
      .context = pass.context(), .targets = {}, .work = buffers_.head(LlamaShape(config_, 1, 1)).rows(0, 1)};
  {
    const WeightLease norm = weights_->acquire(parameters_.final_norm_segment());
    const TensorView last = buffers_.residual(pass.shape(), config_.n_layers).rows(n - 1, 1);
    head_norm(call, norm.weights(), last, pass.shape().eps);
  }
  std::vector<float> result;
  result.reserve(static_cast<std::size_t>(config_.vocab_size));
  for (const int segment : pass.head_chunks) {
    const Segment& info = parameters_.segment(segment);
    const WeightLease lease = weights_->acquire(segment);
    const TensorView logits = buffers_.logits(1, info);
    head_logits(call, {.weight = lease.weights().reshape({info.n_rows, config_.hidden_size}), .logits = logits});
    streams_.order(streams_.compute.get(), streams_.d2h.get(), logits_ready_.get());
    const TensorView row(host_logits_, options_.dtype, {info.n_rows});
    streams_.to_host(row.data, logits.data, row.size_bytes());
    backend_.sync(streams_.d2h.get());
    for (std::int64_t i = 0; i < row.elems(); ++i) {
      result.push_back(row.dtype == DType::kF32 ? row.as<float>()[i] : to_f32(row.as<Bf16>()[i]));
    }
  }
  end_pass();
  return result;
}

/// The route of the weights, and the order of this pass after the one before it.
Pass Engine::Impl::begin_pass(std::int64_t batch_size, std::int64_t seq_len, PassOps::Kind kind) {
  const OpContext context{.backend = backend_, .stream = streams_.compute.get(), .scratch = buffers_.scratch()};
  Pass pass{.ops = PassOps(buffers_, context, LlamaShape(config_, batch_size, seq_len), kind), .head_chunks = {}};
  for (int chunk = 0; chunk < parameters_.n_head_segments(); ++chunk) {
    pass.head_chunks.push_back(parameters_.head_segment(chunk));
  }
  std::vector<int> route;
  for (std::int64_t layer = 0; layer < config_.n_layers; ++layer) route.push_back(parameters_.layer_segment(layer));
  route.push_back(parameters_.final_norm_segment());
  route.insert(route.end(), pass.head_chunks.begin(), pass.head_chunks.end());
  if (kind == PassOps::Kind::kTraining) {
    if (pass.ops.head_visits_twice()) route.insert(route.end(), pass.head_chunks.rbegin(), pass.head_chunks.rend());
    for (std::int64_t layer = config_.n_layers; layer-- > 0;) route.push_back(parameters_.layer_segment(layer));
  }
  weights_->begin_pass(steps_, std::move(route));
  if (any_pass_) backend_.wait(streams_.h2d.get(), pass_ended_.get());
  return pass;
}

void Engine::Impl::end_pass() {
  backend_.record(pass_ended_.get(), streams_.compute.get());
  any_pass_ = true;
}

void Engine::Impl::upload_tokens(const LlamaShape& shape, std::span<const std::int32_t> inputs,
                                 std::span<const std::int32_t> targets) {
  if (any_pass_) backend_.sync(tokens_ready_.get());  // the staging memory is free again
  const std::span host_ids(host_tokens_, inputs.size());
  std::ranges::copy(inputs, host_ids.begin());
  streams_.to_device(buffers_.ids(shape).data, host_ids.data(), host_ids.size_bytes());
  if (!targets.empty()) {
    const std::span host_targets(host_ids.data() + inputs.size(), targets.size());
    std::ranges::copy(targets, host_targets.begin());
    streams_.to_device(buffers_.targets(shape).data, host_targets.data(), host_targets.size_bytes());
  }
  const std::span host_order(host_ids.data() + 2 * inputs.size(), inputs.size());
  sort_positions(inputs, host_order);
  streams_.to_device(buffers_.order(shape).data, host_order.data(), host_order.size_bytes());
}

/// Residual 0: rows gathered on the host, or on the device where the table is resident. `begun`, if given, is recorded
/// where the compute stream's work begins.
void Engine::Impl::embed(const Pass& pass, std::span<const std::int32_t> inputs, Event* begun) {
  const TensorView x = buffers_.residual(pass.shape(), 0);
  const std::int64_t table_elems = config_.vocab_size * config_.hidden_size;
  const TensorView table = arrays_.weights_at(0, table_elems).reshape({config_.vocab_size, config_.hidden_size});
  if (!resident()) {
    wait_for_rows(inputs);
    gather_rows(arrays_.dtype, table.data, config_.hidden_size, inputs, host_x_, pool_);
    streams_.to_device(x.data, host_x_, x.size_bytes());
  }
  streams_.order(streams_.h2d.get(), streams_.compute.get(), tokens_ready_.get());
  if (begun != nullptr) backend_.record(begun, streams_.compute.get());
  if (resident()) pass.context().run(EmbeddingForward{.ids = buffers_.ids(pass.shape()), .table = table, .y = x});
}

void Engine::Impl::wait_for_rows(std::span<const std::int32_t> ids) {
  if (!queue_) return;
  std::vector<std::int32_t> sorted(ids.begin(), ids.end());
  std::ranges::sort(sorted);
  const int first = parameters_.embedding_segment(0);
  const int end = first + parameters_.n_embedding_segments();
  for (int id = pieces_.first_of(first); id < pieces_.first_of(end); ++id) {
    const Piece& piece = pieces_.piece(id);  // the table starts the flat space: row r is at r * C
    const std::int64_t first_row = piece.offset / config_.hidden_size;
    const std::int64_t end_row = first_row + piece.elems / config_.hidden_size;
    const auto it = std::ranges::lower_bound(sorted, first_row);
    if (it != sorted.end() && *it < end_row) queue_->wait_for(id, steps_);
  }
}

void Engine::Impl::forward_layers(const Pass& pass) {
  for (std::int64_t layer = 0; layer < config_.n_layers; ++layer) {
    const WeightLease lease = weights_->acquire(parameters_.layer_segment(layer));
    pass.ops.forward_layer(layer, lease.weights());
  }
}

void Engine::Impl::train_head(const Pass& pass, float scale, StepRecord& record) {
  if (any_embedding_gradient_) backend_.wait(streams_.compute.get(), d_x_arrived_.get());  // d_stream is free again
  const WeightLease norm = weights_->acquire(parameters_.final_norm_segment());
  pass.ops.head_norm(norm.weights());
  const std::int64_t place = steps_ % kLossHistory;
  head_forward(pass, scale, buffers_.loss(place));
  read_loss(buffers_.loss(place), host_losses_ + place, record.loss_arrived.get());
  head_backward(pass, scale);
  const GradientLease gradient = acquire_gradient(parameters_.final_norm_segment());
  pass.ops.head_norm_backward(norm.weights(), gradient.gradient);
  finish_gradient(gradient);
}

void Engine::Impl::head_forward(const Pass& pass, float scale, const TensorView& loss) {
  for (const int segment : pass.head_chunks) {
    const WeightLease lease = weights_->acquire(segment);
    pass.ops.head_forward(parameters_.segment(segment), lease.weights());
  }
  pass.ops.head_loss(scale, loss);
}

/// Chunks in descending order: the last one's weights and logits are still there.
void Engine::Impl::head_backward(const Pass& pass, float scale) {
  for (auto it = pass.head_chunks.rbegin(); it != pass.head_chunks.rend(); ++it) {
    std::optional<WeightLease> lease;
    if (pass.ops.head_visits_twice()) lease.emplace(weights_->acquire(*it));
    const GradientLease gradient = acquire_gradient(*it);
    pass.ops.head_backward(parameters_.segment(*it), lease ? lease->weights() : TensorView(),
                           {.gradient = gradient.gradient, .scale = scale});
    finish_gradient(gradient);
  }
}

void Engine::Impl::backward_layers(const Pass& pass) {
  for (std::int64_t layer = config_.n_layers; layer-- > 0;) {
    const int segment = parameters_.layer_segment(layer);
    const WeightLease lease = weights_->acquire(segment);
    const GradientLease gradient = acquire_gradient(segment);
    pass.ops.backward_layer(layer, lease.weights(), gradient.gradient);
    finish_gradient(gradient);
  }
}

void Engine::Impl::embed_backward(const Pass& pass, std::span<const std::int32_t> inputs) {
  const LlamaShape& shape = pass.shape();
  const TensorView d_x = buffers_.d_stream(shape);
  if (resident()) {
    const TensorView d_table = arrays_.gradients_at(0, config_.vocab_size * config_.hidden_size);
    if (!parameters_.tied()) pass.context().run(Fill{.x = d_table});
    pass.context().run(EmbeddingBackward{.ids = buffers_.ids(shape),
                                         .order = buffers_.order(shape),
                                         .d_y = d_x,
                                         .d_table = d_table.reshape({config_.vocab_size, config_.hidden_size})});
    update_resident(0, d_table);
    return;
  }
  // The gradient of the step before has left host_d_x_ once all embedding pieces are updated.
  const int first = parameters_.embedding_segment(0);
  const int end = first + parameters_.n_embedding_segments();
  for (int id = pieces_.first_of(first); id < pieces_.first_of(end); ++id) queue_->wait_for(id, steps_);
  streams_.order(streams_.compute.get(), streams_.d2h.get(), d_stream_ready_.get());
  streams_.to_host(host_d_x_, d_x.data, d_x.size_bytes());
  backend_.record(d_x_arrived_.get(), streams_.d2h.get());
  any_embedding_gradient_ = true;
  auto gradient = std::make_shared<EmbeddingGradient>();
  gradient->ids.assign(inputs.begin(), inputs.end());
  gradient->order.resize(inputs.size());
  sort_positions(gradient->ids, gradient->order);
  gradient->d_x = TensorView(host_d_x_, d_x.dtype, {shape.N(), shape.C});
  queue_->submit_embedding(std::move(gradient), d_x_arrived_.get());
}

void Engine::Impl::read_loss(const TensorView& loss, float* host, Event* arrived) {
  streams_.order(streams_.compute.get(), streams_.d2h.get(), arrived);
  streams_.to_host(host, loss.data, loss.size_bytes());
  backend_.record(arrived, streams_.d2h.get());
}

/// A resident tied table gathers its head's gradient in place; everything else goes through the slots.
GradientLease Engine::Impl::acquire_gradient(int segment) {
  const Segment& info = parameters_.segment(segment);
  if (resident() && parameters_.tied() && info.kind == Segment::Kind::kHead) {
    return {.segment = segment, .slot = -1, .gradient = arrays_.gradients_at(info.offset, info.elems)};
  }
  return gradients_->acquire(segment);
}

void Engine::Impl::finish_gradient(const GradientLease& lease) {
  if (!resident()) {
    gradients_->write_back(lease);
  } else if (lease.slot >= 0) {
    update_resident(parameters_.segment(lease.segment).offset, lease.gradient);
  }
}

void Engine::Impl::update_resident(std::int64_t offset, const TensorView& gradient) {
  for (const ParameterRange& range :
       parameter_ranges(parameters_, offset, gradient.elems(), options_.decay_embeddings)) {
    const OpContext context{.backend = backend_, .stream = streams_.compute.get(), .scratch = {}};
    context.run(Adamw{.weight = arrays_.weights_at(range.offset, range.elems),
                      .weight_low = arrays_.weights_low_at(range.offset, range.elems),
                      .m = arrays_.m_at(range.offset, range.elems),
                      .v = arrays_.v_at(range.offset, range.elems),
                      .gradient = gradient.columns(range.offset - offset, range.elems),
                      .scalars = range.decayed ? scalars_.decayed : scalars_.plain});
  }
}

}  // namespace ferry
