// SPDX-License-Identifier: Apache-2.0
// Leasing gradient slots and writing them back.
#include "offload/gradient_slots.h"

namespace ferry {

GradientSlots::GradientSlots(Streams& streams, const ParameterTable& parameters, const PieceTable& pieces,
                             const ParameterArrays& arrays, OptimizerQueue* queue, std::vector<void*> slots,
                             void* norm_slot)
    : streams_(streams), parameters_(parameters), pieces_(pieces), arrays_(arrays), queue_(queue) {
  for (void* data : slots) add_slot(data);
  add_slot(norm_slot);
  for (int piece = 0; piece < pieces.n_pieces(); ++piece) piece_arrived_.push_back(streams.backend.create_event());
}

void GradientSlots::add_slot(void* data) {
  Slot slot;
  slot.data = data;
  slot.written = streams_.backend.create_event();
  slot.copied = streams_.backend.create_event();
  slots_.push_back(std::move(slot));
}

GradientLease GradientSlots::acquire(int segment) {
  std::size_t index = slots_.size() - 1;
  if (segment != parameters_.final_norm_segment()) {
    index = next_;
    next_ = (next_ + 1) % (slots_.size() - 1);
  }
  Slot& slot = slots_[index];
  if (slot.copied_once) streams_.backend.wait(streams_.compute.get(), slot.copied.get());
  return {.segment = segment,
          .slot = static_cast<int>(index),
          .gradient = {slot.data, arrays_.dtype, {parameters_.segment(segment).elems}}};
}

void GradientSlots::write_back(const GradientLease& lease) {
  Slot& slot = slots_[static_cast<std::size_t>(lease.slot)];
  const Segment& segment = parameters_.segment(lease.segment);
  const bool waits_for_embedding = segment.kind == Segment::Kind::kHead && parameters_.tied();
  streams_.order(streams_.compute.get(), streams_.d2h.get(), slot.written.get());
  for (int id = pieces_.first_of(lease.segment); id < pieces_.first_of(lease.segment + 1); ++id) {
    const Piece& piece = pieces_.piece(id);
    const TensorView target = arrays_.gradients_at(piece.offset, piece.elems);
    const auto skip = (piece.offset - segment.offset) * static_cast<std::int64_t>(size_of(arrays_.dtype));
    streams_.to_host(target.data, static_cast<std::byte*>(lease.gradient.data) + skip, target.size_bytes());
    if (waits_for_embedding) continue;
    Event* arrived = piece_arrived_[static_cast<std::size_t>(id)].get();
    streams_.backend.record(arrived, streams_.d2h.get());
    queue_->submit(id, arrived);
  }
  streams_.backend.record(slot.copied.get(), streams_.d2h.get());
  slot.copied_once = true;
}

}  // namespace ferry
