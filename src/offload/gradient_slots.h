// SPDX-License-Identifier: Apache-2.0
// Fixed device buffers through which the gradients of segments pass on their way to AdamW.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "offload/gradient_norms.h"
#include "offload/optimizer_queue.h"
#include "offload/streams.h"

namespace ferry {

/// The right to write a segment's gradient on the compute stream, until it is sent home or used there.
struct GradientLease {
  int segment = 0;
  int slot = -1;        // -1: the gradient has an array of its own on the device
  TensorView gradient;  // flat, the segment's elements
};

/// Slots take turns; the final norm has a small one of its own. A slot is reused only after its last write-back, or in
/// the compute stream's own order.
class GradientSlots {
 public:
  /// `queue` takes the pieces as they arrive in the host's gradient arrays; `norms`, which may be null, takes the sums.
  GradientSlots(Streams& streams, const ParameterTable& parameters, const PieceTable& pieces,
                const ParameterArrays& arrays, OptimizerQueue& queue, GradientNorms* norms, std::vector<void*> slots,
                void* norm_slot);

  /// Makes the compute stream wait until a slot is free.
  GradientLease acquire(int segment);
  /// Sends the norms of a finished gradient home, and, where the segment lives on the host and is trained, the gradient
  /// itself, piece by piece; each is submitted to the optimizer.
  void send(const GradientLease& lease);

 private:
  struct Slot {
    void* data = nullptr;
    std::unique_ptr<Event> copied;  // by the d2h stream
    bool copied_once = false;
  };
  void add_slot(void* data);
  void write_back(const GradientLease& lease);

  Streams& streams_;
  const ParameterTable& parameters_;
  const PieceTable& pieces_;
  const ParameterArrays& arrays_;
  OptimizerQueue& queue_;
  GradientNorms* norms_ = nullptr;
  std::vector<Slot> slots_;          // the last one is the final norm's
  std::unique_ptr<Event> finished_;  // by the compute stream
  std::vector<std::unique_ptr<Event>> piece_arrived_;
  std::size_t next_ = 0;
};

}  // namespace ferry
