// SPDX-License-Identifier: Apache-2.0
// Matrix product by tiles of 64 x 64 in shared memory, 4 x 4 sums in each thread's registers, f32 arithmetic.
// Source: BLAS level 3 GEMM, alpha = 1, beta = 0 or 1.
#include "kernels/matmul_plain.h"

#include <cuda_bf16.h>

#include "kernels/launch_kernel.cuh"
#include "kernels/pack.cuh"

namespace ferry::kernels {
namespace {

// Policy. A step of 16 along k keeps both tiles in 8.5 KiB; the pad spreads the transposed stores over the banks.
constexpr int kTile = 64;
constexpr int kStep = 16;
constexpr int kSums = 4;
constexpr int kThreads = (kTile / kSums) * (kTile / kSums);
constexpr int kPad = 4;

/// tile[p][r] = operand(first_row + r, first_column + p), zero beyond the edges. `fast_columns`: neighbouring threads
/// read neighbouring columns, else neighbouring rows.
template <class T>
__device__ void load_tile(float (&tile)[kStep][kTile + kPad], const MatmulPlainOperand& operand, bool fast_columns,
                          std::int64_t first_row, std::int64_t n_rows, std::int64_t first_column,
                          std::int64_t n_columns) {
  const T* data = static_cast<const T*>(operand.data);
#pragma unroll
  for (int i = 0; i < kTile * kStep / kThreads; ++i) {
    const int index = static_cast<int>(threadIdx.x) + i * kThreads;
    const int p = fast_columns ? index % kStep : index / kTile;
    const int r = fast_columns ? index / kStep : index % kTile;
    const std::int64_t row = first_row + r;
    const std::int64_t column = first_column + p;
    float value = 0;
    if (row < n_rows && column < n_columns) {
      value = to_float(data[row * operand.row_stride + column * operand.column_stride]);
    }
    tile[p][r] = value;
  }
}

template <class In, class Out>
__global__ void __launch_bounds__(kThreads) matmul_plain_kernel(MatmulPlainArgs args) {
  __shared__ float a_tile[kStep][kTile + kPad];
  __shared__ float b_tile[kStep][kTile + kPad];
  const std::int64_t n_column_tiles = (args.n + kTile - 1) / kTile;
  const std::int64_t first_row = blockIdx.x / n_column_tiles * kTile;
  const std::int64_t first_column = blockIdx.x % n_column_tiles * kTile;
  const int row = static_cast<int>(threadIdx.x) / (kTile / kSums) * kSums;
  const int column = static_cast<int>(threadIdx.x) % (kTile / kSums) * kSums;
  // b enters transposed: its rows are the columns of d.
  const MatmulPlainOperand b = {args.b.data, args.b.column_stride, args.b.row_stride};

  float sums[kSums][kSums] = {};
  for (std::int64_t k = 0; k < args.k; k += kStep) {
    load_tile<In>(a_tile, args.a, args.a.column_stride == 1, first_row, args.m, k, args.k);
    load_tile<In>(b_tile, b, b.column_stride == 1, first_column, args.n, k, args.k);
    __syncthreads();
#pragma unroll
    for (int p = 0; p < kStep; ++p) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
#pragma unroll
        for (int j = 0; j < kSums; ++j) sums[i][j] = fmaf(a_tile[p][row + i], b_tile[p][column + j], sums[i][j]);
      }
    }
    __syncthreads();
  }

  const Out* c = static_cast<const Out*>(args.c.data);
  Out* d = static_cast<Out*>(args.d.data);
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
#pragma unroll
    for (int j = 0; j < kSums; ++j) {
      const std::int64_t r = first_row + row + i;
      const std::int64_t s = first_column + column + j;
      if (r >= args.m || s >= args.n) continue;
      float value = sums[i][j];
      if (c != nullptr) value += to_float(c[r * args.c.stride + s]);
      d[r * args.d.stride + s] = round_to<Out>(value);
    }
  }
}

}  // namespace

cudaError_t launch_matmul_plain(const MatmulPlainArgs& args, cudaStream_t stream) {
  LaunchShape shape;
  shape.blocks = ceil_div(args.m, kTile) * ceil_div(args.n, kTile);
  shape.threads = kThreads;
  if (args.in == Type::kF32) return launch(matmul_plain_kernel<float, float>, shape, stream, args);
  if (args.out == Type::kF32) return launch(matmul_plain_kernel<__nv_bfloat16, float>, shape, stream, args);
  return launch(matmul_plain_kernel<__nv_bfloat16, __nv_bfloat16>, shape, stream, args);
}

}  // namespace ferry::kernels
