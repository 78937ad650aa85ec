// SPDX-License-Identifier: Apache-2.0
// The backend that needs no GPU: streams are threads, memory is the host's, ops come from one op table.
#pragma once

#include <memory>

#include "backend/backend.h"
#include "backend/cpu/cpu_stream.h"
#include "backend/cpu/op_table.h"

namespace ferry::cpu {

/// `table` outlives the backend. With Launch::kInline every call runs before it returns, and a failing op throws there.
/// A copy of any direction is a memcpy on its stream's thread. Debug builds fill new device memory with NaN.
/// Throws Error{kConfig} for a negative number of threads.
std::unique_ptr<Backend> create_cpu_backend(const OpTable& table, Launch launch, const BackendOptions& options);

}  // namespace ferry::cpu
