// SPDX-License-Identifier: Apache-2.0
// Fixed device buffers through which the weights of segments pass.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "offload/optimizer_queue.h"
#include "offload/streams.h"

namespace ferry {

class WeightSlots;

/// The right to read a segment's weights on the compute stream, from acquire() to its destructor.
class WeightLease {
 public:
  WeightLease(WeightSlots* slots, int slot, TensorView weights) : slots_(slots), slot_(slot), weights_(weights) {}
  WeightLease(WeightLease&& other) noexcept;
  WeightLease& operator=(WeightLease&&) = delete;
  ~WeightLease();

  const TensorView& weights() const { return weights_; }  // flat, the segment's elements

 private:
  WeightSlots* slots_ = nullptr;  // null: it lives on the device, or moved from
  int slot_ = 0;
  TensorView weights_;
};

/// Device memory for weights on their way: slots that any streamed segment may take, and slots of one segment each,
/// which it keeps over steps.
struct WeightSlotMemory {
  struct Own {
    int segment = 0;
    void* data = nullptr;
  };
  std::vector<void*> shared;
  std::vector<Own> own;
};

/// A pass visits segments along a route. A segment is fetched into a free slot, leased to the compute stream, and stays
/// until the slot is needed again; while one segment is leased, the next ones of the route are prefetched. A fetch
/// overwrites a slot only after the compute stream has passed the slot's last release, and copies a piece only when the
/// optimizer has brought it to the pass's version. A lease of a segment that lives on the device is a view: nothing
/// moves.
class WeightSlots {
 public:
  /// Each shared slot holds the largest streamed segment. `queue` may be null when nothing is ever updated.
  WeightSlots(Streams& streams, const ParameterTable& parameters, const PieceTable& pieces,
              const ParameterArrays& arrays, OptimizerQueue* queue, const WeightSlotMemory& memory);

  /// Segments will be acquired in the order of `route`, at `version`. Prefetches the first ones; never blocks.
  void begin_pass(std::int64_t version, std::vector<int> route);
  /// The next segment of the route. Fetches it if need be, blocking on its updates, and makes the compute stream wait
  /// for the copy.
  WeightLease acquire(int segment);
  /// Forgets what is in the slots: the host's weights were changed by hand.
  void invalidate();

 private:
  friend class WeightLease;
  struct Slot {
    void* data = nullptr;
    bool shared = true;
    int segment = -1;
    std::int64_t version = -1;
    bool leased = false;
    bool awaited = false;  // fetched, not yet acquired
    bool released_once = false;
    bool late = false;  // its fetch had to wait for AdamW
    std::uint64_t last_use = 0;
    std::unique_ptr<Event> fetched;
    std::unique_ptr<Event> released;
  };

  void add_slot(void* data);
  bool on_device(int segment) const { return homes_[static_cast<std::size_t>(segment)] == Home::kDevice; }
  Slot* find(int segment);
  Slot* free_slot(int segment);
  bool up_to_date(int segment);
  void prefetch();
  void fetch(int segment, Slot& slot);
  void release(int slot) noexcept;

  Streams& streams_;
  const ParameterTable& parameters_;
  const PieceTable& pieces_;
  const ParameterArrays& arrays_;
  OptimizerQueue* queue_ = nullptr;
  std::vector<Home> homes_;    // by segment
  std::vector<int> own_slot_;  // by segment; -1 = it takes a shared one
  std::vector<Slot> slots_;    // the shared ones first
  std::size_t n_shared_ = 0;
  std::int64_t version_ = 0;
  std::vector<int> route_;
  std::size_t visited_ = 0;  // segments of the route acquired so far
  std::uint64_t clock_ = 0;
  int held_back_ = -1;  // segment that had a free slot but was still being updated
};

}  // namespace ferry
