// SPDX-License-Identifier: Apache-2.0
// The ops of the CPU backend, one table per instruction set.
#pragma once

#include <cstddef>

#include "backend/backend.h"
#include "core/simd.h"
#include "core/thread_pool.h"

namespace ferry::cpu {

/// All ops for one instruction set.
struct OpTable {
  SimdLevel level;
  /// Runs `op`, which check_op has accepted, on the pool's threads; returns when it is done. `scratch` holds at least
  /// scratch_bytes(op), aligned to Buffer::kAlignment. Bits depend on the level and the shapes, not on the pool's size.
  void (*run)(const Op& op, Scratch scratch, ThreadPool& pool);
  /// Depends on shapes and dtypes alone.
  std::size_t (*scratch_bytes)(const Op& op);
};

/// The table of `level`. Running it needs a CPU of that level (supported_simd_level); asking for it does not.
const OpTable& op_table(SimdLevel level);

}  // namespace ferry::cpu
