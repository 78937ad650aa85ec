// SPDX-License-Identifier: Apache-2.0
// Tensors for op tests: values as f64, stored in any dtype, alignment and stride.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/tensor_view.h"

namespace ferry::test {

/// kAligned: contiguous from a multiple of 256 bytes. kOffset: contiguous, one element further. kStrided: rows with
/// gaps.
enum class Placement { kAligned, kOffset, kStrided };

const char* to_string(Placement placement);

/// Owns what its view shows; copies share it. Starts as NaN (or -1) everywhere, gaps included.
class TestTensor {
 public:
  TestTensor() = default;
  TestTensor(DType dtype, std::vector<std::int64_t> shape, Placement placement = Placement::kAligned);

  const TensorView& view() const { return view_; }
  /// Elements in row-major order.
  std::vector<double> values() const;
  /// Rounds each value to the dtype.
  void set(std::span<const double> values);
  /// The elements' bits, row-major: comparable across placements.
  std::vector<std::uint32_t> bits() const;
  /// Whether everything outside the view's elements is as it was.
  bool surroundings_untouched() const;

 private:
  std::int64_t offset(std::int64_t index) const;

  TensorView view_;
  std::shared_ptr<std::vector<std::byte>> storage_;
};

/// For CHECK, which would print all of bits() == bits().
inline bool same_bits(const TestTensor& a, const TestTensor& b) { return a.bits() == b.bits(); }

/// Normal values from a counter generator, as stored in `dtype`.
TestTensor random_tensor(DType dtype, std::vector<std::int64_t> shape, const std::string& name, double scale = 1,
                         Placement placement = Placement::kAligned);

/// "" when every element of `got` is within the tolerance that the backend has for an output of `op`; else the first
/// index that is not, got and want.
std::string difference(const std::string& backend, const char* op, const TestTensor& got, std::span<const double> want);

}  // namespace ferry::test
