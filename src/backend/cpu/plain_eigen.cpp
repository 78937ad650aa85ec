// SPDX-License-Identifier: Apache-2.0
// Hands rows to the plain products of kernels/.
#include "backend/cpu/plain_eigen.h"

#include <algorithm>

#include "backend/cpu/kernels/kernel_table.h"
#include "core/int_math.h"

namespace ferry::cpu {

void plain_eigen_product(SimdLevel level, const Matmul& op, ThreadPool& pool) {
  const KernelTable& table = kernels(level);
  const std::int64_t rows = op.d.shape[0];
  const std::int64_t share = ceil_div(rows, pool.size());
  pool.parallel_for(ceil_div(rows, share), [&](std::int64_t i) {
    table.plain_product(op, {i * share, std::min(rows, (i + 1) * share)});
  });
}

}  // namespace ferry::cpu
