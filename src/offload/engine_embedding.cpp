// SPDX-License-Identifier: Apache-2.0
// Both ends of a pass: tokens and embedding rows on their way to the device, and the gradient of those rows.
#include <algorithm>

#include "offload/engine_impl.h"
#include "optim/embedding_rows.h"

namespace ferry {

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
    streams_.to_device(to.data, staged.data(), staged.size_bytes(), {"tokens"});
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
void Engine::Impl::embed(const Pass& pass, std::span<const std::int32_t> inputs, const BatchRows& rows, Event* begun) {
  const TensorView x = buffers_.residual(pass.shape(), 0);
  const std::int64_t table_elems = config_.vocab_size * config_.hidden_size;
  const TensorView table = arrays_.weights_at(0, table_elems).reshape({config_.vocab_size, config_.hidden_size});
  const bool on_host = table_is_on(Home::kHost);
  const double waited = queue_ ? queue_->waited_ms() : 0;
  if (on_host) {
    wait_for_rows(rows);
    gather(table, inputs, x);
    if (queue_) queue_->release_rows();
  }
  streams_.order(streams_.h2d.get(), streams_.compute.get(), tokens_ready_.get());
  if (begun != nullptr) {
    streams_.waits.end(queue_->waited_ms() > waited ? WaitCause::kOptimizer : WaitCause::kInput);
    backend_.record(begun, streams_.compute.get());
  }
  if (on_host) return;
  streams_.on_compute({"forward embedding"}, [&] {
    pass.context().run(EmbeddingForward{.ids = buffers_.ids(pass.shape()), .table = table, .y = x});
  });
}

/// Rows of the table to x, piece by piece: one travels while the next is gathered.
void Engine::Impl::gather(const TensorView& table, std::span<const std::int32_t> inputs, const TensorView& x) {
  const std::int64_t n = x.shape[0];
  const std::int64_t most = std::max<std::int64_t>(1, host_piece_elems_ / config_.hidden_size);
  const TensorView host(host_.memory.at(host_.x), x.dtype, {n, config_.hidden_size});
  for (std::int64_t first = 0; first < n; first += most) {
    const std::int64_t count = std::min(most, n - first);
    const TensorView rows = host.rows(first, count);
    backend_.host_access(Access::kWrite, rows.data, rows.size_bytes(), "gathered rows");
    gather_rows(arrays_.dtype(), table.data, config_.hidden_size,
                inputs.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count)), rows.data, pool_);
    streams_.to_device(x.rows(first, count).data, rows.data, rows.size_bytes(), {"embedding rows"});
  }
}

void Engine::Impl::wait_for_rows(const BatchRows& rows) {
  if (queue_) queue_->wait_for_rows(rows, steps_);
  for (const std::int32_t row : rows.distinct()) {  // the table starts the flat space: row r is at r * C
    const TensorView weights = arrays_.weights_at(row * config_.hidden_size, config_.hidden_size);
    backend_.host_access(Access::kRead, weights.data, weights.size_bytes(), "embedding rows");
  }
}

/// Rows of an untied embedding that the batch does not read have no gradient: nothing keeps AdamW from them.
void Engine::Impl::submit_other_rows() {
  if (parameters_.tied() || !table_is_on(Home::kHost) || !parameters_.parameters().front().trained) return;
  const auto [first, end] = pieces_.of_embedding();
  for (int id = first; id < end; ++id) queue_->submit(id, nullptr);
}

void Engine::Impl::embed_backward(const Pass& pass, const BatchRows& rows) {
  // Host memory of the step before is free again once its rows are summed, and updated where they live on the host.
  streams_.waits.begin();
  if (steps_ > 0) queue_->verdict(steps_ - 1);
  streams_.waits.end(WaitCause::kOptimizer);
  if (!parameters_.parameters().front().trained) {
    queue_->submit_rows({}, nullptr);
  } else if (table_is_on(Home::kDevice)) {
    embed_backward_on_device(pass, rows);
  } else {
    const auto [first, end] = pieces_.of_embedding();
    streams_.waits.begin();
    for (int id = first; id < end; ++id) queue_->wait_for(id, steps_);
    streams_.waits.end(WaitCause::kOptimizer);
    const TensorView d_x = buffers_.d_stream(pass.shape());
    const TensorView host(host_.memory.at(host_.d_x), d_x.dtype, {d_x.shape[0], d_x.shape[1]});
    send_rows({.d_x = host, .own = parameters_.tied() ? table_gradient() : TensorView()}, d_x);
  }
}

/// (V, C), at its home.
TensorView Engine::Impl::table_gradient() const {
  const std::int64_t elems = config_.vocab_size * config_.hidden_size;
  return arrays_.gradients_at(0, elems).reshape({config_.vocab_size, config_.hidden_size});
}

/// The table's gradient is whole on the device. The host gets its rows for the norm alone, so that the norm has the
/// same bits wherever the table lives.
void Engine::Impl::embed_backward_on_device(const Pass& pass, const BatchRows& rows) {
  const TensorView d_x = buffers_.d_stream(pass.shape());
  const TensorView table_rows = table_gradient();
  streams_.on_compute({"backward embedding"}, [&] {
    if (!parameters_.tied()) pass.context().run(Fill{.x = table_rows});
    pass.context().run(EmbeddingBackward{
        .ids = buffers_.ids(pass.shape()), .order = buffers_.order(pass.shape()), .d_y = d_x, .d_table = table_rows});
  });
  if (norms_) {
    const auto n = static_cast<std::int64_t>(rows.distinct().size());
    const TensorView gathered = d_x.rows(0, n);
    pass.context().run(
        EmbeddingForward{.ids = buffers_.distinct_ids(pass.shape()).rows(0, n), .table = table_rows, .y = gathered});
    const TensorView host(host_.memory.at(host_.d_x), gathered.dtype, {n, config_.hidden_size});
    send_rows({.d_x = {}, .own = host}, gathered);
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
  streams_.to_host(host_.memory.at(host_.d_x), source.data, source.size_bytes(), {"gradient of the input"});
  backend_.record(d_x_arrived_.get(), streams_.d2h.get());
  any_embedding_gradient_ = true;
  queue_->submit_rows(gradients, d_x_arrived_.get());
}

}  // namespace ferry
