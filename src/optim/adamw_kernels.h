// SPDX-License-Identifier: Apache-2.0
// The implementations behind adamw_update: one source file per instruction set, all with the same bits.
#pragma once

#include "optim/adamw.h"

namespace ferry::detail {

// Every implementation does the same IEEE operations in the same order, one rounding each:
//   g = gradient_scale * g;  p = p * decay;  m = fma(1 - beta1, g - m, m);  v = fma((1 - beta2) * g, g, beta2 * v);
//   p = fma(-step_size, m / (sqrt(v) / sqrt_correction2 + eps), p);
// A NaN is stored as 0x7fc00000 (0x7fc0 in bf16), since instruction sets disagree about its payload.

using AdamwKernel = void (*)(const AdamwRange& range, const AdamwScalars& scalars);

/// The implementation that adamw_update runs at `level`.
AdamwKernel adamw_kernel(SimdLevel level);

/// The baseline, and the definition of the bits. `range` is checked.
void adamw_scalar(const AdamwRange& range, const AdamwScalars& scalars);

/// Needs AVX2 and FMA. `range` is checked.
void adamw_avx2(const AdamwRange& range, const AdamwScalars& scalars);

}  // namespace ferry::detail
