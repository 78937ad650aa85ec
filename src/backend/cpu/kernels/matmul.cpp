// SPDX-License-Identifier: Apache-2.0
// One tile of a matrix product: an Eigen product on f32 maps; bf16 operands are converted panel by panel first.
// Source: BLAS level 3 GEMM.
#include "backend/cpu/kernels/lanes.h"

namespace ferry::cpu::FERRY_ISA {
namespace {

using RowMajor = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using ColMajor = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::ColMajor>;
template <class Matrix>
using MapOf = Eigen::Map<Matrix, Eigen::Unaligned, Eigen::OuterStride<>>;

/// f32 rows in memory: an operand, or its converted panel.
struct Panel {
  const float* data;
  std::int64_t stride;
};

struct ProductSize {
  std::int64_t rows;
  std::int64_t columns;
  std::int64_t depth;
};

template <class A, class B>
void multiply(Panel a, Panel b, ProductSize size, float* out, std::int64_t out_stride, bool add) {
  const MapOf<const A> left(a.data, size.rows, size.depth, Eigen::OuterStride<>(a.stride));
  const MapOf<const B> right(b.data, size.depth, size.columns, Eigen::OuterStride<>(b.stride));
  MapOf<RowMajor> result(out, size.rows, size.columns, Eigen::OuterStride<>(out_stride));
  if (add) {
    result.noalias() += left * right;
  } else {
    result.noalias() = left * right;
  }
}

void multiply(const Matmul& op, Panel a, Panel b, ProductSize size, float* out, std::int64_t out_stride, bool add) {
  if (!op.transpose_a && !op.transpose_b) return multiply<RowMajor, RowMajor>(a, b, size, out, out_stride, add);
  if (!op.transpose_a) return multiply<RowMajor, ColMajor>(a, b, size, out, out_stride, add);
  if (!op.transpose_b) return multiply<ColMajor, RowMajor>(a, b, size, out, out_stride, add);
  multiply<ColMajor, ColMajor>(a, b, size, out, out_stride, add);
}

/// Eigen's order of summation depends on alignment in very small products and in dot products: their operands are
/// copied to the workspace, as bf16 ones are.
bool depends_on_alignment(const MatmulTile& tile, std::int64_t depth) {
  constexpr std::int64_t kSmall = 32;  // Eigen's own limit is 20
  return tile.n_rows + tile.n_columns + depth < kSmall || (tile.n_rows == 1 && tile.n_columns == 1);
}

/// A tile's product on its way: where it is summed, and how operands are read.
struct Accumulation {
  float* out;
  std::int64_t out_stride;
  bool add;          // to what `out` holds
  bool copy;         // f32 operands too
  float* workspace;  // panels of a, then of b
};

/// Rows and columns of a stored matrix as compact f32.
template <class T>
Panel copied_panel(const TensorView& x, std::int64_t offset, std::int64_t n_rows, std::int64_t n_columns, float* to) {
  for (std::int64_t r = 0; r < n_rows; ++r) {
    load(to + r * n_columns, at<const T>(x, offset + r * x.stride[0]), n_columns);
  }
  return {to, n_columns};
}
Panel panel(const TensorView& x, Range rows, Range columns, bool copy, float* to) {
  const std::int64_t offset = rows.begin * x.stride[0] + columns.begin;
  const std::int64_t n_rows = rows.end - rows.begin;
  const std::int64_t n_columns = columns.end - columns.begin;
  if (x.dtype != DType::kF32) return copied_panel<Bf16Bits>(x, offset, n_rows, n_columns, to);
  if (copy) return copied_panel<float>(x, offset, n_rows, n_columns, to);
  return {at<const float>(x, offset), x.stride[0]};
}

std::int64_t depth_of(const Matmul& op) { return op.transpose_a ? op.a.shape[0] : op.a.shape[1]; }

/// out = (out or 0) + op(a) op(b) for the tile, in steps of depth.
void accumulate(const Matmul& op, const MatmulTile& tile, const Accumulation& sum) {
  const std::int64_t depth = depth_of(op);
  const bool copies = sum.copy || op.a.dtype != DType::kF32;
  const std::int64_t step = copies ? kMatmulDepth : depth;
  const Range rows = {tile.row, tile.row + tile.n_rows};
  const Range columns = {tile.column, tile.column + tile.n_columns};
  float* const b_panel = sum.workspace + kMatmulDepth * kMaxTileRows;
  for (std::int64_t begin = 0; begin < depth; begin += step) {
    const Range k = {begin, smaller(depth, begin + step)};
    const Panel a =
        op.transpose_a ? panel(op.a, k, rows, sum.copy, sum.workspace) : panel(op.a, rows, k, sum.copy, sum.workspace);
    const Panel b =
        op.transpose_b ? panel(op.b, columns, k, sum.copy, b_panel) : panel(op.b, k, columns, sum.copy, b_panel);
    multiply(op, a, b, {tile.n_rows, tile.n_columns, k.end - k.begin}, sum.out, sum.out_stride, sum.add || begin > 0);
  }
}

/// f32 results accumulate in place.
void matmul_in_place(const Matmul& op, const MatmulTile& tile, float* workspace) {
  const std::int64_t stride = op.d.stride[0];
  float* const out = at<float>(op.d, tile.row * stride + tile.column);
  if (op.c.data != nullptr && op.c.data != op.d.data) {
    for (std::int64_t r = 0; r < tile.n_rows; ++r) {
      load(out + r * stride, at<const float>(op.c, (tile.row + r) * op.c.stride[0] + tile.column), tile.n_columns);
    }
  }
  accumulate(op, tile, {out, stride, op.c.data != nullptr, false, workspace});
}

/// Other results are summed in the workspace and rounded once.
template <class T>
void matmul_rounded(const Matmul& op, const MatmulTile& tile, bool copy, float* workspace) {
  float* const sum = workspace + kMatmulDepth * (kMaxTileRows + kMaxTileColumns);
  accumulate(op, tile, {sum, tile.n_columns, false, copy, workspace});
  for (std::int64_t r = 0; r < tile.n_rows; ++r) {
    float* const row = sum + r * tile.n_columns;
    if (op.c.data != nullptr) {
      const T* const c = at<const T>(op.c, (tile.row + r) * op.c.stride[0] + tile.column);
      for (std::int64_t i = 0; i < tile.n_columns; ++i) row[i] += to_float(c[i]);
    }
    store(at<T>(op.d, (tile.row + r) * op.d.stride[0] + tile.column), row, tile.n_columns);
  }
}

}  // namespace

void matmul(const Matmul& op, const MatmulTile& tile, float* workspace) {
  const bool copy = depends_on_alignment(tile, depth_of(op));
  if (op.d.dtype != DType::kF32) return matmul_rounded<Bf16Bits>(op, tile, copy, workspace);
  if (copy) return matmul_rounded<float>(op, tile, copy, workspace);
  matmul_in_place(op, tile, workspace);
}

void plain_product(const Matmul& op, Range rows) {
  const std::int64_t a_offset = op.transpose_a ? rows.begin : rows.begin * op.a.stride[0];
  const ProductSize size = {rows.end - rows.begin, op.d.shape[1], depth_of(op)};
  multiply(op, {at<const float>(op.a, a_offset), op.a.stride[0]}, {at<const float>(op.b), op.b.stride[0]}, size,
           at<float>(op.d, rows.begin * op.d.stride[0]), op.d.stride[0], false);
}

}  // namespace ferry::cpu::FERRY_ISA
