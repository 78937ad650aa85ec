// SPDX-License-Identifier: Apache-2.0
// The CUDA backend.
#include <string_view>

#include "gpu_or_skip.h"
#include "ops/backend_runner.h"
#include "ops/op_runners.h"

namespace ferry::test {

std::vector<OpRunner> op_runners() {
  gpu_or_skip();
  return {backend_runner(create_backend("cuda", {}))};
}

// Twice by one backend, whose plans are then made; and by another, which makes its own.
std::vector<std::vector<OpRunner>> equal_runners() {
  gpu_or_skip();
  const OpRunner runner = backend_runner(create_backend("cuda", {}));
  return {{runner, runner, backend_runner(create_backend("cuda", {}))}};
}

// cuBLASLt; attention by fused kernels, cuDNN or the plain kernels, as rows are aligned.
bool is_by_library(const OpRunner&, const char* op) {
  const std::string_view name = op;
  return name == Matmul::kName || name == AttentionForward::kName || name == AttentionBackward::kName;
}

}  // namespace ferry::test
