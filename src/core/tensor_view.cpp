// SPDX-License-Identifier: Apache-2.0
// Arithmetic of strided views.
#include "core/tensor_view.h"

#include "core/error.h"

namespace ferry {

TensorView::TensorView(void* data_in, DType dtype_in, std::initializer_list<std::int64_t> shape_in)
    : data(data_in), dtype(dtype_in), rank(static_cast<int>(shape_in.size())) {
  FERRY_ASSERT(rank <= kMaxRank);
  int i = 0;
  for (const std::int64_t extent : shape_in) shape[static_cast<std::size_t>(i++)] = extent;
  std::int64_t step = 1;
  for (int d = rank - 1; d >= 0; --d) {
    stride[static_cast<std::size_t>(d)] = step;
    step *= shape[static_cast<std::size_t>(d)];
  }
}

std::int64_t TensorView::elems() const {
  std::int64_t count = 1;
  for (int d = 0; d < rank; ++d) count *= shape[static_cast<std::size_t>(d)];
  return count;
}

bool TensorView::contiguous() const {
  std::int64_t step = 1;
  for (int d = rank - 1; d >= 0; --d) {
    const auto i = static_cast<std::size_t>(d);
    if (shape[i] != 1 && stride[i] != step) return false;
    step *= shape[i];
  }
  return true;
}

std::size_t TensorView::span_bytes() const {
  if (elems() == 0) return 0;
  std::int64_t last = 0;
  for (int d = 0; d < rank; ++d) {
    const auto i = static_cast<std::size_t>(d);
    last += (shape[i] - 1) * stride[i];
  }
  return static_cast<std::size_t>(last + 1) * size_of(dtype);
}

TensorView TensorView::rows(std::int64_t begin, std::int64_t count) const {
  FERRY_ASSERT(rank >= 1 && begin >= 0 && count >= 0 && begin + count <= shape[0]);
  TensorView view = *this;
  view.data = static_cast<std::byte*>(data) + begin * stride[0] * static_cast<std::int64_t>(size_of(dtype));
  view.shape[0] = count;
  return view;
}

TensorView TensorView::columns(std::int64_t begin, std::int64_t count) const {
  FERRY_ASSERT(rank >= 1);
  const auto last = static_cast<std::size_t>(rank - 1);
  FERRY_ASSERT(begin >= 0 && count >= 0 && begin + count <= shape[last]);
  TensorView view = *this;
  view.data = static_cast<std::byte*>(data) + begin * static_cast<std::int64_t>(size_of(dtype));
  view.shape[last] = count;
  return view;
}

TensorView TensorView::reshape(std::initializer_list<std::int64_t> new_shape) const {
  FERRY_ASSERT(contiguous());
  TensorView view(data, dtype, new_shape);
  FERRY_ASSERT(view.elems() == elems());
  return view;
}

std::string TensorView::describe() const {
  std::string text = std::string(to_string(dtype)) + " (";
  for (int d = 0; d < rank; ++d) text += (d ? ", " : "") + std::to_string(shape[static_cast<std::size_t>(d)]);
  return text + ")";
}

void TensorView::check_type(DType wanted) const { FERRY_ASSERT(dtype == wanted); }

}  // namespace ferry
