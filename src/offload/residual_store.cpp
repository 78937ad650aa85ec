// SPDX-License-Identifier: Apache-2.0
// Copies of residuals and their order.
#include "offload/residual_store.h"

#include <algorithm>

namespace ferry {

std::int64_t ResidualStore::count(const StepBuffers& buffers) {
  const EngineOptions& options = buffers.options();
  if (!options.training || options.residuals == Residuals::kDevice) return 0;
  return std::max<std::int64_t>(0, buffers.n_layers() + 1 - StepBuffers::kResidualRing);
}

ResidualStore::ResidualStore(Streams& streams, const StepBuffers& buffers, void* host, std::size_t stride_bytes)
    : streams_(streams),
      buffers_(buffers),
      host_(static_cast<std::byte*>(host)),
      stride_bytes_(stride_bytes),
      count_(count(buffers)),
      computed_(streams.backend.create_event()) {
  for (std::int64_t i = 0; i < count_; ++i) {
    sent_.push_back(streams.backend.create_event());
    fetched_.push_back(streams.backend.create_event());
  }
}

void ResidualStore::reserve(std::int64_t layer) {
  const std::int64_t before = layer - StepBuffers::kResidualRing;
  if (leaves(before)) streams_.wait_on_compute(sent_[static_cast<std::size_t>(before)].get(), WaitCause::kResiduals);
}

void ResidualStore::written(std::int64_t layer) {
  if (!leaves(layer)) return;
  const TensorView residual = buffers_.residual(*batch_, layer);
  streams_.order(streams_.compute.get(), streams_.d2h.get(), computed_.get());
  streams_.to_host(host(layer), residual.data, residual.size_bytes(), {"residual"});
  streams_.backend.record(sent_[static_cast<std::size_t>(layer)].get(), streams_.d2h.get());
}

void ResidualStore::acquire(std::int64_t layer) {
  if (leaves(layer)) streams_.wait_on_compute(fetched_[static_cast<std::size_t>(layer)].get(), WaitCause::kResiduals);
}

void ResidualStore::release(std::int64_t layer) {
  const std::int64_t next = layer - StepBuffers::kResidualRing;
  if (!leaves(next)) return;
  const TensorView residual = buffers_.residual(*batch_, next);
  // The compute stream has waited until `next` was sent: reserve().
  streams_.order(streams_.compute.get(), streams_.h2d.get(), computed_.get());
  streams_.to_device(residual.data, host(next), residual.size_bytes(), {"residual"});
  streams_.backend.record(fetched_[static_cast<std::size_t>(next)].get(), streams_.h2d.get());
}

}  // namespace ferry
