// SPDX-License-Identifier: Apache-2.0
// Every way to run an op: each SIMD level of the CPU table, and the backends.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "core/simd.h"

namespace ferry::test {

struct OpRunner {
  std::string name;                    // "cpu/avx2": the part before the slash picks the tolerances
  std::function<void(const Op&)> run;  // checks the op, gives it scratch, returns when it is done
};

/// Two threads. The backends come after the levels.
const std::vector<OpRunner>& op_runners();

/// One level of the CPU table with `n_threads`.
void run_op(SimdLevel level, int n_threads, const Op& op);

/// Levels that this machine can run.
std::vector<SimdLevel> simd_levels();

}  // namespace ferry::test
