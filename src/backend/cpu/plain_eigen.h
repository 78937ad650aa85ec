// SPDX-License-Identifier: Apache-2.0
// The yardstick of the CPU's matrix products: Eigen called without any tiling of ours.
#pragma once

#include "backend/ops.h"
#include "core/simd.h"
#include "core/thread_pool.h"

namespace ferry::cpu {

/// d = op(a) op(b) for an f32 op without c, as one Eigen product per thread on an equal share of the rows.
void plain_eigen_product(SimdLevel level, const Matmul& op, ThreadPool& pool);

}  // namespace ferry::cpu
