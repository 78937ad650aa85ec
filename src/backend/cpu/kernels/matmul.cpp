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

/// Rows [row, row + n_rows), columns [column, column + n_columns) of a stored matrix, as f32.
Panel panel(const TensorView& x, std::int64_t row, std::int64_t n_rows, std::int64_t column, std::int64_t n_columns,
            float* workspace) {
  const std::int64_t stride = x.stride[0];
  const std::int64_t offset = row * stride + column;
  if (x.dtype == DType::kF32) return {at<const float>(x, offset), stride};
  for (std::int64_t r = 0; r < n_rows; ++r) {
    load(workspace + r * n_columns, at<const Bf16Bits>(x, offset + r * stride), n_columns);
  }
  return {workspace, n_columns};
}

/// out = (c or 0) + op(a) op(b) for the tile, in steps of depth.
void accumulate(const Matmul& op, const MatmulTile& tile, float* out, std::int64_t out_stride, bool add,
                float* workspace) {
  const std::int64_t depth = op.transpose_a ? op.a.shape[0] : op.a.shape[1];
  const std::int64_t step = op.a.dtype == DType::kF32 ? depth : kMatmulDepth;
  float* const a_panel = workspace;
  float* const b_panel = workspace + kMatmulDepth * kMaxTileRows;
  for (std::int64_t k = 0; k < depth; k += step) {
    const std::int64_t n = smaller(step, depth - k);
    const Panel a = op.transpose_a ? panel(op.a, k, n, tile.row, tile.n_rows, a_panel)
                                   : panel(op.a, tile.row, tile.n_rows, k, n, a_panel);
    const Panel b = op.transpose_b ? panel(op.b, tile.column, tile.n_columns, k, n, b_panel)
                                   : panel(op.b, k, n, tile.column, tile.n_columns, b_panel);
    multiply(op, a, b, {tile.n_rows, tile.n_columns, n}, out, out_stride, add || k > 0);
  }
}

/// f32 results accumulate in place.
void matmul_to_f32(const Matmul& op, const MatmulTile& tile, float* workspace) {
  const std::int64_t stride = op.d.stride[0];
  float* const out = at<float>(op.d, tile.row * stride + tile.column);
  if (op.c.data != nullptr && op.c.data != op.d.data) {
    for (std::int64_t r = 0; r < tile.n_rows; ++r) {
      load(out + r * stride, at<const float>(op.c, (tile.row + r) * op.c.stride[0] + tile.column), tile.n_columns);
    }
  }
  accumulate(op, tile, out, stride, op.c.data != nullptr, workspace);
}

/// bf16 results are rounded once from an f32 tile.
void matmul_to_bf16(const Matmul& op, const MatmulTile& tile, float* workspace) {
  float* const sum = workspace + kMatmulDepth * (kMaxTileRows + kMaxTileColumns);
  accumulate(op, tile, sum, tile.n_columns, false, workspace);
  for (std::int64_t r = 0; r < tile.n_rows; ++r) {
    float* const row = sum + r * tile.n_columns;
    if (op.c.data != nullptr) {
      const auto* const c = at<const Bf16Bits>(op.c, (tile.row + r) * op.c.stride[0] + tile.column);
      for (std::int64_t i = 0; i < tile.n_columns; ++i) row[i] += to_float(c[i]);
    }
    store(at<Bf16Bits>(op.d, (tile.row + r) * op.d.stride[0] + tile.column), row, tile.n_columns);
  }
}

}  // namespace

void matmul(const Matmul& op, const MatmulTile& tile, float* workspace) {
  if (op.d.dtype == DType::kF32) return matmul_to_f32(op, tile, workspace);
  matmul_to_bf16(op, tile, workspace);
}

void plain_product(const Matmul& op, Range rows) {
  const std::int64_t a_offset = op.transpose_a ? rows.begin : rows.begin * op.a.stride[0];
  const ProductSize size = {rows.end - rows.begin, op.d.shape[1], op.transpose_a ? op.a.shape[0] : op.a.shape[1]};
  multiply(op, {at<const float>(op.a, a_offset), op.a.stride[0]}, {at<const float>(op.b), op.b.stride[0]}, size,
           at<float>(op.d, rows.begin * op.d.stride[0]), op.d.stride[0], false);
}

}  // namespace ferry::cpu::FERRY_ISA
