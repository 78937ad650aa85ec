// SPDX-License-Identifier: Apache-2.0
// How far an op's output may lie from the reference: the one table, by backend and the output's dtype.
#pragma once

#include <stdexcept>
#include <string>

#include "core/dtype.h"

namespace ferry::test {

/// |got - want| <= relative * |want| + of_largest * max |want of the tensor|
struct Tolerance {
  const char* backend;
  DType dtype;
  double relative;
  double of_largest;
};

inline constexpr Tolerance kTolerances[] = {
    // f32 arithmetic in another order: 2^-24 times a few, sums of up to some hundred terms.
    {"cpu", DType::kF32, 2e-6, 2e-6},
    // One rounding to nearest: the f32 result may fall on the other side of a tie, one step of 2^-8.
    {"cpu", DType::kBf16, 0x1p-7, 1e-5},
    {"cpu", DType::kI32, 0, 0},
};

/// The entry for a backend; a runner named "cpu/avx2" belongs to "cpu".
inline const Tolerance& tolerance(const std::string& backend, DType dtype) {
  for (const Tolerance& entry : kTolerances) {
    if (backend.substr(0, backend.find('/')) == entry.backend && dtype == entry.dtype) return entry;
  }
  throw std::logic_error("no tolerance for " + backend);
}

}  // namespace ferry::test
