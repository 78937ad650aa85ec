// SPDX-License-Identifier: Apache-2.0
// Fixed device buffers through which the gradients of segments pass on their way to AdamW.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "offload/optimizer_queue.h"
#include "offload/streams.h"

namespace ferry {

/// The right to write a segment's gradient on the compute stream, until write_back(); a gradient that is used on the
/// compute stream itself needs none, since that stream's order frees the slot.
struct GradientLease {
  int segment = 0;
  int slot = 0;
  TensorView gradient;  // flat, the segment's elements
};

/// A slot is reused only after its last write-back (or device update) is done. The final norm has a small slot of its
/// own.
class GradientSlots {
 public:
  /// `queue` takes the pieces as they are written back to the host slab in `arrays`; null when AdamW runs on the
  /// device.
  GradientSlots(Streams& streams, const ParameterTable& parameters, const PieceTable& pieces,
                const ParameterArrays& arrays, OptimizerQueue* queue, std::vector<void*> slots, void* norm_slot);

  /// Makes the compute stream wait until a slot is free.
  GradientLease acquire(int segment);
  /// Copies the gradient to its host slab, piece by piece, and submits each to the optimizer. Rows of a tied table are
  /// not submitted: they wait for the input embedding's gradient.
  void write_back(const GradientLease& lease);

 private:
  struct Slot {
    void* data = nullptr;
    std::unique_ptr<Event> written;  // by the compute stream
    std::unique_ptr<Event> copied;   // by the d2h stream
    bool copied_once = false;
  };
  void add_slot(void* data);

  Streams& streams_;
  const ParameterTable& parameters_;
  const PieceTable& pieces_;
  const ParameterArrays& arrays_;
  OptimizerQueue* queue_ = nullptr;
  std::vector<Slot> slots_;  // the last one is the final norm's
  std::vector<std::unique_ptr<Event>> piece_arrived_;
  std::size_t next_ = 0;
};

}  // namespace ferry
