// SPDX-License-Identifier: Apache-2.0
// Leasing gradient slots and writing them back.
#include "offload/gradient_slots.h"

#include <utility>

namespace ferry {

GradientSlots::GradientSlots(Streams& streams, const ParameterTable& parameters, const PieceTable& pieces,
                             const ParameterArrays& arrays, OptimizerQueue& queue, GradientNorms* norms,
                             std::vector<void*> slots, void* norm_slot)
    : streams_(streams),
      parameters_(parameters),
      pieces_(pieces),
      arrays_(arrays),
      queue_(queue),
      norms_(norms),
      finished_(streams.backend.create_event()) {
  for (void* data : slots) add_slot(data);
  add_slot(norm_slot);
  for (int piece = 0; piece < pieces.n_pieces(); ++piece) piece_arrived_.push_back(streams.backend.create_event());
}

void GradientSlots::add_slot(void* data) {
  Slot slot;
  slot.data = data;
  slot.copied = streams_.backend.create_event();
  slots_.push_back(std::move(slot));
}

GradientLease GradientSlots::acquire(int segment) {
  const Segment& info = parameters_.segment(segment);
  if (arrays_.home_of(info.offset) == Home::kDevice) {
    if (const TensorView own = arrays_.gradients_at(info.offset, info.elems)) return {segment, -1, own};
  }
  if (segment == parameters_.final_norm_segment()) {
    // Its weights of this step, leased already, are made from the gradient that was here.
    return {segment, static_cast<int>(slots_.size() - 1),
            TensorView(slots_.back().data, arrays_.dtype(), {info.elems})};
  }
  const std::size_t index = std::exchange(next_, (next_ + 1) % (slots_.size() - 1));
  Slot& slot = slots_[index];
  if (slot.copied_once) streams_.wait_on_compute(slot.copied.get(), WaitCause::kGradients);
  return {segment, static_cast<int>(index), TensorView(slot.data, arrays_.dtype(), {info.elems})};
}

void GradientSlots::send(const GradientLease& lease) {
  const Segment& segment = parameters_.segment(lease.segment);
  const bool goes_home = arrays_.home_of(segment.offset) == Home::kHost;
  if (!parameters_.is_trained(segment) || (norms_ == nullptr && !goes_home)) return;
  streams_.order(streams_.compute.get(), streams_.d2h.get(), finished_.get());
  if (norms_ != nullptr) norms_->send(lease.segment);
  if (goes_home) write_back(lease);
}

void GradientSlots::write_back(const GradientLease& lease) {
  Slot& slot = slots_[static_cast<std::size_t>(lease.slot)];
  const Segment& segment = parameters_.segment(lease.segment);
  for (int id = pieces_.first_of(lease.segment); id < pieces_.first_of(lease.segment + 1); ++id) {
    const Piece& piece = pieces_.piece(id);
    const TensorView source = lease.gradient.columns(piece.offset - segment.offset, piece.elems);
    streams_.to_host(arrays_.gradients_at(piece.offset, piece.elems).data, source.data, source.size_bytes(),
                     {.what = "gradient", .piece = id});
    Event* arrived = piece_arrived_[static_cast<std::size_t>(id)].get();
    streams_.backend.record(arrived, streams_.d2h.get());
    queue_.submit(id, arrived);
  }
  streams_.poison(streams_.d2h.get(), lease.gradient);
  streams_.backend.record(slot.copied.get(), streams_.d2h.get());
  slot.copied_once = true;
}

}  // namespace ferry
