// SPDX-License-Identifier: Apache-2.0
// A typed, strided view of memory that somebody else owns. Passed by value.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "core/dtype.h"

namespace ferry {

/// Up to four dimensions, outermost first. The last dimension is contiguous; the others may be strided (elements).
/// A view with data == nullptr stands for an optional argument that is absent.
struct TensorView {
  static constexpr int kMaxRank = 4;

  void* data = nullptr;
  DType dtype = DType::kF32;
  int rank = 0;
  std::array<std::int64_t, kMaxRank> shape{};
  std::array<std::int64_t, kMaxRank> stride{};

  TensorView() = default;
  /// A contiguous view.
  TensorView(void* data, DType dtype, std::initializer_list<std::int64_t> shape);

  explicit operator bool() const { return data != nullptr; }
  std::int64_t elems() const;
  bool contiguous() const;
  /// Bytes of a contiguous view.
  std::size_t size_bytes() const { return static_cast<std::size_t>(elems()) * size_of(dtype); }
  /// Bytes from `data` to one past the last element, gaps of strided dimensions included.
  std::size_t span_bytes() const;

  /// Rows [begin, begin + count) of the first dimension.
  TensorView rows(std::int64_t begin, std::int64_t count) const;
  /// Columns [begin, begin + count) of the last dimension; the result is strided.
  TensorView columns(std::int64_t begin, std::int64_t count) const;
  /// The same elements in another shape. Asserts a contiguous view and an equal count.
  TensorView reshape(std::initializer_list<std::int64_t> new_shape) const;

  /// Asserts that T is the element type.
  template <class T>
  T* as() const {
    check_type(DTypeOf<T>::kValue);
    return static_cast<T*>(data);
  }

  /// "bf16 (4, 128, 64)"
  std::string describe() const;

 private:
  void check_type(DType wanted) const;
};

}  // namespace ferry
