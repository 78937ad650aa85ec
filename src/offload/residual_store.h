// SPDX-License-Identifier: Apache-2.0
// Residuals that do not stay on the device: sent home as forward writes them, back in time for backward.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "offload/step_buffers.h"
#include "offload/streams.h"

namespace ferry {

/// Residual l lies in buffer l % StepBuffers::kResidualRing. The last ones are still there when backward begins; the
/// others go through host memory. Calls follow a training pass: for each residual ascending reserve, write, written;
/// descending acquire, read, release. With residuals that stay every call does nothing.
class ResidualStore {
 public:
  /// Of a training pass, residuals [0, count) pass through the host.
  static std::int64_t count(const StepBuffers& buffers);

  /// `host` holds count() residuals of the largest batch, `stride_bytes` apart.
  ResidualStore(Streams& streams, const StepBuffers& buffers, void* host, std::size_t stride_bytes);

  void begin_pass(const LlamaShape& batch) { batch_ = batch; }
  /// Makes the compute stream wait until the buffer of residual `layer` is free.
  void reserve(std::int64_t layer);
  /// The compute stream has written it, or waits for who has.
  void written(std::int64_t layer);
  /// Makes the compute stream wait until it is there again.
  void acquire(std::int64_t layer);
  /// It has been read for the last time: the one that takes its place is fetched.
  void release(std::int64_t layer);

 private:
  bool leaves(std::int64_t layer) const { return layer >= 0 && layer < count_; }
  void* host(std::int64_t layer) const { return host_ + static_cast<std::size_t>(layer) * stride_bytes_; }

  Streams& streams_;
  const StepBuffers& buffers_;
  std::byte* host_ = nullptr;
  const std::size_t stride_bytes_;
  const std::int64_t count_;
  std::optional<LlamaShape> batch_;
  std::vector<std::unique_ptr<Event>> sent_;     // by residual
  std::vector<std::unique_ptr<Event>> fetched_;  // by residual
  std::unique_ptr<Event> computed_;
};

}  // namespace ferry
