// SPDX-License-Identifier: Apache-2.0
// A CPU backend whose ops and copies pause at random, fail, or write NaN: what the engine must survive.
#pragma once

#include <cstdint>
#include <memory>

#include "backend/backend.h"
#include "backend/cpu/cpu_stream.h"

namespace ferry::test {

struct Disturbance {
  std::uint64_t seed = 0;          // of the pauses before ops and copies; 0 = none
  std::int64_t failing_op = -1;    // counted from 0 since arm(); -1 = none
  std::int64_t failing_copy = -1;  // likewise
  std::int64_t nan_op = -1;        // counted as failing_op; the first element of each of its outputs becomes NaN
};

/// The real CPU ops behind streams that are disturbed, all such backends by one count.
std::unique_ptr<Backend> create_delayed_backend(cpu::Launch launch, int threads);

/// From now on ops and copies count from 0 and are disturbed in this way.
void arm(const Disturbance& disturbance);

/// Ops that have run since arm().
std::int64_t n_ops_run();

}  // namespace ferry::test
