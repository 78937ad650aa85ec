// SPDX-License-Identifier: Apache-2.0
// Fetching, leasing and releasing of weight slots.
#include "offload/weight_slots.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/log.h"

namespace ferry {

WeightLease::WeightLease(WeightLease&& other) noexcept
    : slots_(std::exchange(other.slots_, nullptr)), slot_(other.slot_), weights_(other.weights_) {}

WeightLease::~WeightLease() {
  if (slots_ != nullptr) slots_->release(slot_);
}

WeightSlots::WeightSlots(Streams& streams, const ParameterTable& parameters, const PieceTable& pieces,
                         const ParameterArrays& arrays, OptimizerQueue* queue, const WeightSlotMemory& memory)
    : streams_(streams),
      parameters_(parameters),
      pieces_(pieces),
      arrays_(arrays),
      queue_(queue),
      own_slot_(parameters.segments().size(), -1),
      n_shared_(memory.shared.size()) {
  for (const Segment& segment : parameters.segments()) homes_.push_back(arrays.home_of(segment.offset));
  for (void* data : memory.shared) add_slot(data);
  for (const WeightSlotMemory::Own& own : memory.own) {
    own_slot_[static_cast<std::size_t>(own.segment)] = static_cast<int>(slots_.size());
    add_slot(own.data);
    slots_.back().shared = false;
  }
}

void WeightSlots::add_slot(void* data) {
  Slot slot;
  slot.data = data;
  slot.fetched = streams_.backend.create_event();
  slot.released = streams_.backend.create_event();
  slots_.push_back(std::move(slot));
}

WeightSlots::Slot* WeightSlots::find(int segment) {
  for (Slot& slot : slots_) {
    if (slot.segment == segment && slot.version == version_) return &slot;
  }
  return nullptr;
}

/// The segment's own slot, else the shared one that was used longest ago; null when all are leased or awaited.
WeightSlots::Slot* WeightSlots::free_slot(int segment) {
  const auto usable = [this](const Slot& slot) { return !slot.leased && !(slot.awaited && slot.version == version_); };
  if (const int own = own_slot_[static_cast<std::size_t>(segment)]; own >= 0) {
    Slot& slot = slots_[static_cast<std::size_t>(own)];
    return usable(slot) ? &slot : nullptr;
  }
  Slot* oldest = nullptr;
  for (std::size_t i = 0; i < n_shared_; ++i) {
    Slot& slot = slots_[i];
    if (usable(slot) && (oldest == nullptr || slot.last_use < oldest->last_use)) oldest = &slot;
  }
  return oldest;
}

bool WeightSlots::up_to_date(int segment) {
  if (queue_ == nullptr) return true;
  for (int piece = pieces_.first_of(segment); piece < pieces_.first_of(segment + 1); ++piece) {
    if (!queue_->is_at(piece, version_)) return false;
  }
  return true;
}

void WeightSlots::fetch(int segment, Slot& slot) {
  slot.segment = segment;
  slot.version = version_;
  slot.last_use = ++clock_;
  slot.awaited = true;
  const double waited_ms = queue_ != nullptr ? queue_->waited_ms() : 0;
  if (slot.released_once) streams_.backend.wait(streams_.h2d.get(), slot.released.get());
  streams_.poison(streams_.h2d.get(), {slot.data, arrays_.dtype(), {parameters_.segment(segment).elems}});
  const std::int64_t base = parameters_.segment(segment).offset;
  for (int id = pieces_.first_of(segment); id < pieces_.first_of(segment + 1); ++id) {
    if (queue_ != nullptr) queue_->wait_for(id, version_);
    const Piece& piece = pieces_.piece(id);
    const TensorView source = arrays_.weights_at(piece.offset, piece.elems);
    void* target = static_cast<std::byte*>(slot.data) +
                   (piece.offset - base) * static_cast<std::int64_t>(size_of(arrays_.dtype()));
    streams_.to_device(target, source.data, source.size_bytes(), {.what = "weights", .piece = id});
  }
  streams_.backend.record(slot.fetched.get(), streams_.h2d.get());
  slot.late = segment == held_back_ || (queue_ != nullptr && queue_->waited_ms() > waited_ms);
  held_back_ = -1;
}

void WeightSlots::begin_pass(std::int64_t version, std::vector<int> route) {
  version_ = version;
  route_ = std::move(route);
  visited_ = 0;
  for (Slot& slot : slots_) slot.awaited = false;
  prefetch();
}

/// Looks as far ahead as there are shared slots; stops at the first segment that has no slot or is still being updated,
/// so that fetches keep the route's order.
void WeightSlots::prefetch() {
  std::size_t ahead = 0;  // segments that take a shared slot
  for (std::size_t i = visited_; i < route_.size(); ++i) {
    const int segment = route_[i];
    if (on_device(segment)) continue;
    if (own_slot_[static_cast<std::size_t>(segment)] < 0 && ++ahead > n_shared_) return;
    if (Slot* present = find(segment)) {
      present->awaited = true;
      continue;
    }
    Slot* slot = free_slot(segment);
    if (slot == nullptr) return;
    if (!up_to_date(segment)) {
      held_back_ = segment;
      return;
    }
    fetch(segment, *slot);
  }
}

WeightLease WeightSlots::acquire(int segment) {
  FERRY_ASSERT(visited_ < route_.size() && route_[visited_] == segment);
  ++visited_;
  const Segment& info = parameters_.segment(segment);
  if (on_device(segment)) return {nullptr, 0, arrays_.weights_at(info.offset, info.elems)};
  streams_.waits.begin();
  Slot* slot = find(segment);
  if (slot == nullptr) {
    slot = free_slot(segment);
    FERRY_ASSERT(slot != nullptr);
    fetch(segment, *slot);
  }
  FERRY_ASSERT(!slot->leased);
  streams_.backend.wait(streams_.compute.get(), slot->fetched.get());
  streams_.waits.end(slot->late ? WaitCause::kOptimizer : WaitCause::kWeights);
  slot->leased = true;
  slot->awaited = false;
  slot->last_use = ++clock_;
  prefetch();
  return {this, static_cast<int>(slot - slots_.data()), TensorView(slot->data, arrays_.dtype(), {info.elems})};
}

void WeightSlots::invalidate() {
  for (Slot& slot : slots_) slot.segment = -1;
}

void WeightSlots::release(int index) noexcept {
  Slot& slot = slots_[static_cast<std::size_t>(index)];
  slot.leased = false;
  try {
    streams_.backend.record(slot.released.get(), streams_.compute.get());
    slot.released_once = true;
  } catch (const std::exception& failure) {
    slot.segment = -1;  // the backend has failed: its next call throws the same to the caller
    log::debug("releasing a weight slot: {}", failure.what());
  }
}

}  // namespace ferry
