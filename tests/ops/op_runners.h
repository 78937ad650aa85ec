// SPDX-License-Identifier: Apache-2.0
// Every way to run an op that a test program is about. The same tests run in ferry_test_ops (cpu_runners.cpp) and
// ferry_test_ops_cuda (cuda_runners.cpp), there with the tag [gpu] (FERRY_OP_TAGS).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "backend/ops.h"

namespace ferry::test {

struct OpRunner {
  std::string name;                    // "cpu/avx2": the part before the slash picks the tolerances
  std::function<void(const Op&)> run;  // checks the op, gives it scratch, returns when it is done
};

/// Made anew by each call: a test calls it once. Skips the test where the program's device is missing.
std::vector<OpRunner> op_runners();

/// Groups of runners that give the same bits within a group.
std::vector<std::vector<OpRunner>> equal_runners();

/// Whether a library does this op for the runner, by an algorithm that depends on alignment, strides and aliasing. The
/// bits of all others depend on none of them.
bool is_by_library(const OpRunner& runner, const char* op);

}  // namespace ferry::test
