// SPDX-License-Identifier: Apache-2.0
// How far the results of two backends may lie apart, by op and dtype, and where they first lie further.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "backend/ops.h"

namespace ferry {

/// |got - want| <= relative * |want| + of_largest * (largest finite |want| of the tensor). Both 0: equal bits.
struct CheckTolerance {
  double relative = 0;
  double of_largest = 0;
};

/// For a tensor of `dtype` that `op` writes; depends on the op's shapes too.
CheckTolerance check_tolerance(const Op& op, DType dtype);

struct CheckDifference {
  std::array<std::int64_t, TensorView::kMaxRank> index{};  // of the first element that differs
  int rank = 0;
  double got = 0;
  double want = 0;
  double allowed = 0;         // of |got - want|
  double largest = 0;         // finite |want| of the tensor
  std::int64_t n_differ = 0;  // elements that differ in all

  /// "(1, 3)"
  std::string index_text() const;
};

/// The elements of two views of one shape in host memory; what lies between them is not read. NaN agrees with NaN.
std::optional<CheckDifference> first_difference(const TensorView& got, const TensorView& want,
                                                const CheckTolerance& tolerance);

}  // namespace ferry
