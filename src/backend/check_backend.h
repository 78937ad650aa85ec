// SPDX-License-Identifier: Apache-2.0
// A backend that runs every op on two backends and stops at the first result on which they disagree.
#pragma once

#include <memory>
#include <string>

#include "backend/backend.h"

namespace ferry {

struct CheckedBackend {
  std::string name;  // for messages
  std::unique_ptr<Backend> backend;
};

/// Memory, streams, events and copies are those of `subject`; what it computes is what the caller gets. For debugging:
/// enqueue blocks until the op is done on both, and both host memory and the reference's memory grow to the largest op.
/// enqueue throws Error{kDevice} with op, tensor, index, got, want and tolerance (check_compare.h) at the first op that
/// disagrees, and so does every call after it. Gaps of strided tensors are not compared.
std::unique_ptr<Backend> create_check_backend(CheckedBackend subject, CheckedBackend reference);

}  // namespace ferry
