// SPDX-License-Identifier: Apache-2.0
// The yardstick of the CUDA backend's matrix products: what cuBLASLt proposes and more that it accepts, each to be run.
#pragma once

#include <cstddef>
#include <memory>

#include "backend/backend.h"

namespace ferry::cuda {

/// The algorithms of cuBLASLt for one product: those that CublasLtMatmul times and further ones, in the same order and
/// under the same rules, but without its choice.
class ProductSweep {
 public:
  static constexpr std::size_t kMaxCandidates = 128;

  /// Has no candidates where `stream` is not the CUDA backend's. `scratch` holds scratch_bytes(op) and stays. Throws
  /// Error{kDevice}.
  ProductSweep(StreamRef stream, const Matmul& op, Scratch scratch);
  ~ProductSweep();
  ProductSweep(const ProductSweep&) = delete;
  ProductSweep& operator=(const ProductSweep&) = delete;

  std::size_t size() const;
  /// Enqueues a candidate on the stream of the constructor; false where it fails to start.
  bool enqueue(std::size_t index) const;

 private:
  struct State;
  std::unique_ptr<State> state_;  // null without candidates
};

}  // namespace ferry::cuda
