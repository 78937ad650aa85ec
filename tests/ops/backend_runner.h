// SPDX-License-Identifier: Apache-2.0
// Runs ops through a backend, on copies of their tensors in its device memory.
#pragma once

#include <memory>

#include "backend/backend.h"
#include "ops/op_runners.h"

namespace ferry::test {

/// Tensors that share host memory, views of one fused buffer as well as an output in the place of an input, share
/// device memory in the same way, with the alignment they have on the host. Only what the op writes comes back. Throws
/// std::runtime_error when the op changes memory that it may only read, or memory around its tensors or its scratch.
/// The scratch has exactly the size that the op asks for; it and the surroundings hold NaN.
OpRunner backend_runner(std::unique_ptr<Backend> backend);

}  // namespace ferry::test
