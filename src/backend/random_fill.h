// SPDX-License-Identifier: Apache-2.0
// Random device memory for measurements: products of zeros draw less power, and so run faster, than real ones.
#pragma once

#include <cstdint>

#include "backend/backend.h"

namespace ferry {

/// Fills device memory with one pattern, over and over.
class RandomFill {
 public:
  /// Normal values of standard deviation `scale`; uniform integers from 0 to `scale` - 1 for i32. The same in every
  /// run.
  RandomFill(Backend& backend, DType dtype, float scale);

  /// `data` has `elems` elements. Blocks.
  void fill(StreamRef stream, void* data, std::int64_t elems) const;

 private:
  /// A prime, so that rows of no width repeat each other; 2 to 4 MiB.
  static constexpr std::int64_t kElems = 1'048'573;

  Backend& backend_;
  DType dtype_;
  Buffer pattern_;  // in host memory
};

}  // namespace ferry
