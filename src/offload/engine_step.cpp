// SPDX-License-Identifier: Apache-2.0
// The passes of the engine: a training step, evaluation, and the logits of one position.
#include <algorithm>

#include "core/error.h"
#include "offload/engine_impl.h"
#include "optim/embedding_rows.h"

namespace ferry {
namespace {

void check_batch(const Batch& batch, const EngineOptions& options) {
  FERRY_CHECK(batch.batch_size >= 1 && batch.seq_len >= 1, kShape, "batch is {} x {}: expected 1 x 1 or more",
              batch.batch_size, batch.seq_len);
  FERRY_CHECK(batch.batch_size <= options.batch_size && batch.seq_len <= options.seq_len, kShape,
              "batch is {} x {}, the engine was planned for {} x {}", batch.batch_size, batch.seq_len,
              options.batch_size, options.seq_len);
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
  const auto rows = std::make_shared<const BatchRows>(batch.inputs);
  scalars_ = queue_->begin_step(step, lr, rows);
  if (norms_) norms_->begin_step(step);
  StepRecord& record = records_[static_cast<std::size_t>(step % kLossHistory)];
  const StepStats before{.h2d_bytes = streams_.h2d_bytes, .d2h_bytes = streams_.d2h_bytes};
  const double waited_before = queue_->waited_ms();

  const Pass pass = begin_pass(batch.batch_size, batch.seq_len, true);
  upload_tokens(pass.shape, batch.inputs, batch.targets, rows.get());
  embed(pass, batch.inputs, record.begun.get());
  submit_other_rows();
  forward_layers(pass);
  {
    const WeightLease norm = weights_->acquire(parameters_.final_norm_segment());
    const std::int64_t place = step % kLossHistory;
    head_norm(pass.context, pass.shape, norm.weights(), buffers_.residual(pass.shape, config_.n_layers),
              buffers_.head(pass.shape));
    head_forward(pass, mean_scale(batch), buffers_.loss(place));
    float* const loss = host_.memory.as<float>(host_.losses) + place;
    read_loss(buffers_.loss(place), loss, record.loss_arrived.get());
    if (options_.check_finite) queue_->submit_loss(std::span(loss, 1), record.loss_arrived.get());
    head_backward(pass, mean_scale(batch), norm);
  }
  backward_layers(pass);
  embed_backward(pass, *rows);
  if (queue_->deferred() && anything_on(Home::kDevice)) update_all_on_device(step);
  backend_.record(record.ended.get(), streams_.compute.get());
  end_pass();

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
  const Pass pass = begin_pass(batch.batch_size, batch.seq_len, false);
  upload_tokens(pass.shape, batch.inputs, batch.targets);
  embed(pass, batch.inputs);
  forward_layers(pass);
  {
    const WeightLease norm = weights_->acquire(parameters_.final_norm_segment());
    head_norm(pass.context, pass.shape, norm.weights(), buffers_.residual(pass.shape, config_.n_layers),
              buffers_.head(pass.shape));
  }
  const TensorView loss = buffers_.loss(kLossHistory);
  head_forward(pass, 1.0F, loss);
  end_pass();
  float* const host = host_.memory.as<float>(host_.losses) + kLossHistory;
  read_loss(loss, host, logits_ready_.get());
  backend_.sync(logits_ready_.get());
  return static_cast<double>(*host);
}

std::vector<float> Engine::Impl::next_logits(std::span<const std::int32_t> ids) {
  const auto n = static_cast<std::int64_t>(ids.size());
  FERRY_CHECK(n >= 1 && n <= options_.seq_len, kShape, "{} ids: expected 1 to {}", n, options_.seq_len);
  check_ids(ids, config_.vocab_size, false);
  const Pass pass = begin_pass(1, n, false);
  upload_tokens(pass.shape, ids, {});
  embed(pass, ids);
  forward_layers(pass);
  const LlamaShape one(config_, 1, 1);
  const HeadWork work = buffers_.head(one);
  {
    const WeightLease norm = weights_->acquire(parameters_.final_norm_segment());
    const TensorView last = buffers_.residual(pass.shape, config_.n_layers).rows(n - 1, 1);
    head_norm(pass.context, one, norm.weights(), last, work);
  }
  std::vector<float> result;
  result.reserve(static_cast<std::size_t>(config_.vocab_size));
  for (const int segment : pass.head_chunks) {
    const WeightLease lease = weights_->acquire(segment);
    const HeadChunk chunk = head_chunk(lease, segment);
    head_logits(pass.context, chunk, work);
    streams_.order(streams_.compute.get(), streams_.d2h.get(), logits_ready_.get());
    const TensorView row(host_.memory.at(host_.logits), options_.dtype, {chunk.weight.shape[0]});
    streams_.to_host(row.data, work.logits.data, row.size_bytes());
    backend_.sync(streams_.d2h.get());
    for (std::int64_t i = 0; i < row.elems(); ++i) {
      result.push_back(row.dtype == DType::kF32 ? row.as<float>()[i] : to_f32(row.as<Bf16>()[i]));
    }
  }
  end_pass();
  return result;
}

/// The route of the weights, and the order of this pass after the one before it.
Pass Engine::Impl::begin_pass(std::int64_t batch_size, std::int64_t seq_len, bool training) {
  Pass pass{.shape = LlamaShape(config_, batch_size, seq_len),
            .context = {.backend = backend_, .stream = streams_.compute.get(), .scratch = buffers_.scratch()},
            .head_chunks = {}};
  for (int chunk = 0; chunk < parameters_.n_head_segments(); ++chunk) {
    pass.head_chunks.push_back(parameters_.head_segment(chunk));
  }
  std::vector<int> route;
  for (std::int64_t layer = 0; layer < config_.n_layers; ++layer) route.push_back(parameters_.layer_segment(layer));
  route.push_back(parameters_.final_norm_segment());
  route.insert(route.end(), pass.head_chunks.begin(), pass.head_chunks.end());
  if (training) {
    route.insert(route.end(), pass.head_chunks.rbegin(), pass.head_chunks.rend());
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

/// `rows`, if given, are what AdamW needs to know of the batch on the device.
void Engine::Impl::upload_tokens(const LlamaShape& shape, std::span<const std::int32_t> inputs,
                                 std::span<const std::int32_t> targets, const BatchRows* rows) {
  if (any_pass_) backend_.sync(tokens_ready_.get());  // the staging memory is free again
  auto* next = host_.memory.as<std::int32_t>(host_.tokens);
  const auto upload = [&](const TensorView& to, std::span<const std::int32_t> values) {
    if (values.empty()) return;
    const std::span staged(next, values.size());
    next += values.size();
    std::ranges::copy(values, staged.begin());
    backend_.host_access(Access::kWrite, staged.data(), staged.size_bytes(), "tokens");
    streams_.to_device(to.data, staged.data(), staged.size_bytes());
  };
  upload(buffers_.ids(shape), inputs);
  upload(buffers_.targets(shape), targets);
  if (rows == nullptr) return;
  upload(buffers_.order(shape), rows->order());
  upload(buffers_.distinct_ids(shape), rows->distinct());
  if (!norms_) return;
  std::vector<std::int32_t> mask(static_cast<std::size_t>(config_.vocab_size));
  for (const std::int32_t id : rows->distinct()) mask[static_cast<std::size_t>(id)] = 1;
  upload(buffers_.row_mask(), mask);
}

/// Residual 0: rows gathered on the host, or on the device where the table lives there. `begun`, if given, is recorded
/// where the compute stream's work begins.
void Engine::Impl::embed(const Pass& pass, std::span<const std::int32_t> inputs, Event* begun) {
  const TensorView x = buffers_.residual(pass.shape, 0);
  const std::int64_t table_elems = config_.vocab_size * config_.hidden_size;
  const TensorView table = arrays_.weights_at(0, table_elems).reshape({config_.vocab_size, config_.hidden_size});
  const bool on_host = table_is_on(Home::kHost);
  if (on_host) {
    wait_for_rows(inputs);
    void* const rows = host_.memory.at(host_.x);
    backend_.host_access(Access::kWrite, rows, x.size_bytes(), "gathered rows");
    gather_rows(arrays_.dtype(), table.data, config_.hidden_size, inputs, rows, pool_);
    streams_.to_device(x.data, rows, x.size_bytes());
  }
  streams_.order(streams_.h2d.get(), streams_.compute.get(), tokens_ready_.get());
  if (begun != nullptr) backend_.record(begun, streams_.compute.get());
  if (!on_host) pass.context.run(EmbeddingForward{.ids = buffers_.ids(pass.shape), .table = table, .y = x});
}

void Engine::Impl::wait_for_rows(std::span<const std::int32_t> ids) {
  std::vector<std::int32_t> sorted(ids.begin(), ids.end());
  std::ranges::sort(sorted);
  const int first = parameters_.embedding_segment(0);
  const int end = first + parameters_.n_embedding_segments();
  for (int id = pieces_.first_of(first); id < pieces_.first_of(end); ++id) {
    const Piece& piece = pieces_.piece(id);  // the table starts the flat space: row r is at r * C
    const std::int64_t first_row = piece.offset / config_.hidden_size;
    const std::int64_t end_row = first_row + piece.elems / config_.hidden_size;
    const auto it = std::ranges::lower_bound(sorted, first_row);
    if (it == sorted.end() || *it >= end_row) continue;
    if (queue_) queue_->wait_for(id, steps_);
    const TensorView rows = arrays_.weights_at(piece.offset, piece.elems);
    backend_.host_access(Access::kRead, rows.data, rows.size_bytes(), "embedding rows");
  }
}

/// Rows of an untied embedding that the batch does not read have no gradient: nothing keeps AdamW from them.
void Engine::Impl::submit_other_rows() {
  if (parameters_.tied() || !table_is_on(Home::kHost) || !parameters_.parameters().front().trained) return;
  const int first = parameters_.embedding_segment(0);
  const int end = first + parameters_.n_embedding_segments();
  for (int id = pieces_.first_of(first); id < pieces_.first_of(end); ++id) queue_->submit(id, nullptr);
}

void Engine::Impl::forward_layers(const Pass& pass) {
  const LlamaShape& shape = pass.shape;
  for (std::int64_t layer = 0; layer < config_.n_layers; ++layer) {
    const WeightLease lease = weights_->acquire(parameters_.layer_segment(layer));
    layer_forward(pass.context, shape, buffers_.rope(shape),
                  layer_tensors(shape, arrays_.dtype(), lease.weights().data), buffers_.residual(shape, layer),
                  buffers_.residual(shape, layer + 1), buffers_.kept(shape, layer), buffers_.work(shape));
  }
}

HeadChunk Engine::Impl::head_chunk(const WeightLease& lease, int segment) const {
  const Segment& info = parameters_.segment(segment);
  return {.weight = lease.weights().reshape({info.n_rows, config_.hidden_size}), .first_token = info.first_row};
}

void Engine::Impl::head_forward(const Pass& pass, float scale, const TensorView& loss) {
  const HeadWork work = buffers_.head(pass.shape);
  const TensorView targets = buffers_.targets(pass.shape);
  for (const int segment : pass.head_chunks) {
    const WeightLease lease = weights_->acquire(segment);
    head_chunk_forward(pass.context, head_chunk(lease, segment), targets, work);
  }
  head_loss(pass.context, targets, scale, loss, work);
}

/// Chunks in descending order: the last one's weights and logits are still there.
void Engine::Impl::head_backward(const Pass& pass, float scale, const WeightLease& norm) {
  const LlamaShape& shape = pass.shape;
  const HeadWork work = buffers_.head(shape);
  bool first = true;
  for (auto it = pass.head_chunks.rbegin(); it != pass.head_chunks.rend(); ++it) {
    const WeightLease lease = weights_->acquire(*it);
    const HeadChunk chunk = head_chunk(lease, *it);
    const GradientLease gradient = gradients_->acquire(*it);
    const HeadChunkBackward how{.scale = scale, .first = first, .logits_fresh = first};
    head_chunk_backward(pass.context, chunk, buffers_.targets(shape), how,
                        gradient.gradient.reshape({chunk.weight.shape[0], config_.hidden_size}), work);
    finish_gradient(pass.context, gradient);
    first = false;
  }
  if (any_embedding_gradient_) backend_.wait(streams_.compute.get(), d_x_arrived_.get());  // d_stream is free again
  const GradientLease gradient = gradients_->acquire(parameters_.final_norm_segment());
  head_norm_backward(pass.context, norm.weights(), buffers_.residual(shape, config_.n_layers), buffers_.d_stream(shape),
                     gradient.gradient, work);
  finish_gradient(pass.context, gradient);
}

void Engine::Impl::backward_layers(const Pass& pass) {
  const LlamaShape& shape = pass.shape;
  const LayerWork work = buffers_.work(shape);
  const bool recompute = options_.recompute == Recompute::kLean;
  for (std::int64_t layer = config_.n_layers; layer-- > 0;) {
    const int segment = parameters_.layer_segment(layer);
    const WeightLease lease = weights_->acquire(segment);
    const GradientLease gradient = gradients_->acquire(segment);
    const LayerTensors weights = layer_tensors(shape, arrays_.dtype(), lease.weights().data);
    const LayerKept kept = buffers_.kept(shape, layer);
    const TensorView x = buffers_.residual(shape, layer);
    if (recompute) layer_recompute(pass.context, shape, buffers_.rope(shape), weights, x, kept, work);
    layer_backward(pass.context, shape, buffers_.rope(shape), weights, x, kept, work, buffers_.d_stream(shape),
                   layer_tensors(shape, arrays_.dtype(), gradient.gradient.data), recompute);
    finish_gradient(pass.context, gradient);
  }
}

void Engine::Impl::embed_backward(const Pass& pass, const BatchRows& rows) {
  // Host memory of the step before is free again: its rows are summed, and updated where they live on the host.
  if (steps_ > 0) queue_->verdict(steps_ - 1);
  if (!parameters_.parameters().front().trained) {
    queue_->submit_rows({}, nullptr);
  } else if (table_is_on(Home::kDevice)) {
    embed_backward_on_device(pass, rows);
  } else {
    const int first = parameters_.embedding_segment(0);
    const int end = first + parameters_.n_embedding_segments();
    for (int id = pieces_.first_of(first); id < pieces_.first_of(end); ++id) queue_->wait_for(id, steps_);
    const TensorView d_x = buffers_.d_stream(pass.shape);
    const TensorView host(host_.memory.at(host_.d_x), d_x.dtype, {d_x.shape[0], d_x.shape[1]});
    const bool tied = parameters_.tied();
    void* const sums = tied ? arrays_.gradients_at(0, 1).data : host_.memory.at(host_.row_gradients);
    send_rows({.d_x = host, .data = sums, .by_id = tied}, d_x);
  }
}

/// The table's gradient is whole on the device. The host gets its rows for the norm alone, so that the norm has the
/// same bits wherever the table lives.
void Engine::Impl::embed_backward_on_device(const Pass& pass, const BatchRows& rows) {
  const TensorView d_x = buffers_.d_stream(pass.shape);
  const TensorView d_table = arrays_.gradients_at(0, config_.vocab_size * config_.hidden_size);
  const TensorView table_rows = d_table.reshape({config_.vocab_size, config_.hidden_size});
  if (!parameters_.tied()) pass.context.run(Fill{.x = d_table});
  pass.context.run(EmbeddingBackward{
      .ids = buffers_.ids(pass.shape), .order = buffers_.order(pass.shape), .d_y = d_x, .d_table = table_rows});
  if (norms_) {
    const auto n = static_cast<std::int64_t>(rows.distinct().size());
    const TensorView gathered = d_x.rows(0, n);
    pass.context.run(
        EmbeddingForward{.ids = buffers_.distinct_ids(pass.shape).rows(0, n), .table = table_rows, .y = gathered});
    send_rows({.d_x = {}, .data = host_.memory.at(host_.d_x), .by_id = false}, gathered);
  } else {
    queue_->submit_rows({}, nullptr);
  }
  if (queue_->deferred()) return;
  for (int chunk = 0; chunk < parameters_.n_embedding_segments(); ++chunk) {
    const int segment = parameters_.embedding_segment(chunk);
    update_on_device(segment,
                     arrays_.gradients_at(parameters_.segment(segment).offset, parameters_.segment(segment).elems));
  }
}

/// Copies what the optimizer's rows come from, and submits them.
void Engine::Impl::send_rows(const RowGradients& gradients, const TensorView& source) {
  streams_.order(streams_.compute.get(), streams_.d2h.get(), d_stream_ready_.get());
  streams_.to_host(host_.memory.at(host_.d_x), source.data, source.size_bytes());
  backend_.record(d_x_arrived_.get(), streams_.d2h.get());
  any_embedding_gradient_ = true;
  queue_->submit_rows(gradients, d_x_arrived_.get());
}

void Engine::Impl::read_loss(const TensorView& loss, float* host, Event* arrived) {
  streams_.order(streams_.compute.get(), streams_.d2h.get(), arrived);
  streams_.to_host(host, loss.data, loss.size_bytes());
  backend_.record(arrived, streams_.d2h.get());
}

void Engine::Impl::finish_gradient(const OpContext& context, const GradientLease& lease) {
  const Segment& segment = parameters_.segment(lease.segment);
  const bool is_table = segment.offset < parameters_.parameters().front().elems;  // a tied one: its rows come last
  if (norms_) {
    const bool rows_come = is_table && parameters_.parameters().front().trained;
    norms_->take(context, lease.segment, lease.gradient, rows_come ? buffers_.row_mask() : TensorView());
  }
  gradients_->send(lease);
  const bool on_device = arrays_.home_of(segment.offset) == Home::kDevice;
  if (on_device && !is_table && !queue_->deferred()) update_on_device(lease.segment, lease.gradient);
}

void Engine::Impl::update_on_device(int segment, const TensorView& gradient) {
  const Segment& info = parameters_.segment(segment);
  const OpContext context{.backend = backend_, .stream = streams_.compute.get(), .scratch = {}};
  for (const auto& [offset, elems, decayed] : parameter_ranges(parameters_, info.offset, info.elems)) {
    context.run(Adamw{.weight = arrays_.weights_at(offset, elems),
                      .weight_low = arrays_.at(ParameterArray::kWeightLow, offset, elems),
                      .m = arrays_.at(ParameterArray::kFirstMoment, offset, elems),
                      .v = arrays_.at(ParameterArray::kSecondMoment, offset, elems),
                      .gradient = gradient.columns(offset - info.offset, elems),
                      .scalars = decayed ? scalars_.decayed : scalars_.plain});
  }
}

/// With clipping: the launching thread learns the step's norm, then launches all updates.
void Engine::Impl::update_all_on_device(std::int64_t step) {
  const StepVerdict verdict = queue_->verdict(step);
  if (!verdict.applied) return;
  scalars_ = verdict.scalars;
  for (std::size_t i = 0; i < parameters_.segments().size(); ++i) {
    const Segment& segment = parameters_.segment(static_cast<int>(i));
    if (arrays_.home_of(segment.offset) == Home::kHost || !parameters_.is_trained(segment)) continue;
    update_on_device(static_cast<int>(i), arrays_.gradients_at(segment.offset, segment.elems));
  }
}

}  // namespace ferry
