// SPDX-License-Identifier: Apache-2.0
// What attention forward and backward share: query tiles against key blocks, in f32.
#pragma once

#include "backend/cpu/kernels/lanes.h"

namespace ferry::cpu::FERRY_ISA {

using RowMajor = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Rows = Eigen::Map<RowMajor, Eigen::Unaligned, Eigen::OuterStride<>>;
using ConstRows = Eigen::Map<const RowMajor, Eigen::Unaligned, Eigen::OuterStride<>>;

inline Rows rows_of(float* data, std::int64_t n_rows, std::int64_t n_columns, std::int64_t stride) {
  return {data, n_rows, n_columns, Eigen::OuterStride<>(stride)};
}
inline ConstRows rows_of(const float* data, std::int64_t n_rows, std::int64_t n_columns, std::int64_t stride) {
  return {data, n_rows, n_columns, Eigen::OuterStride<>(stride)};
}

/// Offset of row (batch, position) of one head in a (B, T, heads, D) view.
inline std::int64_t row_offset(const TensorView& x, std::int64_t batch, std::int64_t position, std::int64_t head) {
  return batch * x.stride[0] + position * x.stride[1] + head * x.stride[2];
}

/// out (count, D) = rows [begin, begin + count) of one head, times `scale`.
inline void load_rows(float* __restrict out, const TensorView& x, std::int64_t batch, std::int64_t head,
                      std::int64_t begin, std::int64_t count, float scale) {
  const std::int64_t width = x.shape[3];
  with_type(x.dtype, [&](auto type) {
    for (std::int64_t r = 0; r < count; ++r) {
      const auto* const in = at<const decltype(type)>(x, row_offset(x, batch, begin + r, head));
      for (std::int64_t i = 0; i < width; ++i) out[r * width + i] = to_float(in[i]) * scale;
    }
  });
}

inline void store_rows(const TensorView& x, std::int64_t batch, std::int64_t head, std::int64_t begin,
                       std::int64_t count, const float* in) {
  const std::int64_t width = x.shape[3];
  with_type(x.dtype, [&](auto type) {
    for (std::int64_t r = 0; r < count; ++r) {
      store(at<decltype(type)>(x, row_offset(x, batch, begin + r, head)), in + r * width, width);
    }
  });
}

/// Keys [begin, begin + count) against a query tile.
struct KeyBlock {
  std::int64_t begin;
  std::int64_t count;
  std::int64_t first_limit;  // keys that the tile's first row sees: row r sees keys < first_limit + r

  /// Keys of this block that row r sees.
  std::int64_t visible(std::int64_t r) const {
    const std::int64_t limit = first_limit + r - begin;
    return limit < 0 ? 0 : smaller(limit, count);
  }
};

/// Takes aligned pieces off a workspace.
class Carver {
 public:
  explicit Carver(float* next) : next_(next) {}
  float* take(std::int64_t n) {
    float* const piece = next_;
    next_ += round_up(n);
    return piece;
  }

 private:
  float* next_;
};

}  // namespace ferry::cpu::FERRY_ISA
