// SPDX-License-Identifier: Apache-2.0
// A matrix product for any extents, strides and alignment: serves the products that the library refuses.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/launch.h"

namespace ferry::kernels {

/// Element (r, c) of the operand, after its transpose, is data[r * row_stride + c * column_stride].
struct MatmulPlainOperand {
  const void* data = nullptr;
  std::int64_t row_stride = 0;
  std::int64_t column_stride = 0;
};

/// d = a b + c: f32 sums over k in ascending order, c added last, rounded once.
struct MatmulPlainArgs {
  Type in = Type::kF32;   // of a, b
  Type out = Type::kF32;  // of c, d; f32 where `in` is f32
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  MatmulPlainOperand a;  // (M, K)
  MatmulPlainOperand b;  // (K, N)
  ConstRows c;           // (M, N), optional; may be d
  Rows d;                // (M, N)
};
[[nodiscard]] cudaError_t launch_matmul_plain(const MatmulPlainArgs& args, cudaStream_t stream);

}  // namespace ferry::kernels
