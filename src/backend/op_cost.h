// SPDX-License-Identifier: Apache-2.0
// What an op costs: arithmetic and memory traffic, from its shapes alone.
#pragma once

#include "backend/ops.h"

namespace ferry {

/// FLOP of a matrix product or of attention, the visible pairs alone; 0 for other ops.
double op_flop(const Op& op);

/// Bytes of the elements that the op reads and writes, each counted once per direction; of an embedding table, the rows
/// of N different ids.
double op_bytes(const Op& op);

}  // namespace ferry
