// SPDX-License-Identifier: Apache-2.0
// The CPU's op tables, one for each SIMD level.
#pragma once

#include <vector>

#include "backend/ops.h"
#include "core/simd.h"

namespace ferry::test {

/// Levels that this machine can run.
std::vector<SimdLevel> simd_levels();

}  // namespace ferry::test
