// SPDX-License-Identifier: Apache-2.0
// The bounds of a plan without a GPU against what the backend asks for.
#include "backend/cuda/scratch_bound.h"

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/cudnn_attention.h"
#include "catch.h"
#include "gpu_or_skip.h"

namespace ferry {
namespace {

TEST_CASE("scratch is known without the GPU, but for cuDNN's, which is bounded", "[gpu]") {
  gpu_or_skip();
  const auto backend = cuda::create_cuda_backend(cuda::CudaOptions());
  const cuda::ScratchBound bound(AttentionChoice::kAuto);
  for (const std::int64_t rows : {1, 100, 264, 5000}) {
    for (const std::int64_t width : {8, 100, 4096}) {
      const TensorView x(nullptr, DType::kBf16, {rows, width});
      RmsNormBackward norm;
      norm.x = x;
      const Op sum = SumOfSquares{.x = x, .skip = {}, .y = {}};
      CHECK(bound.scratch_bytes(norm) == backend->scratch_bytes(norm));
      CHECK(bound.scratch_bytes(sum) == backend->scratch_bytes(sum));
    }
  }
  CHECK(bound.scratch_bytes(Matmul{}) == backend->scratch_bytes(Matmul{}));
}

struct AttentionOps {
  AttentionForward forward;
  AttentionBackward backward;
};

AttentionOps attention_of(DType dtype, std::int64_t batch, std::int64_t length, std::int64_t width) {
  const TensorView q(nullptr, dtype, {batch, length, 16, width});
  const TensorView k(nullptr, dtype, {batch, length, 4, width});
  const TensorView lse(nullptr, DType::kF32, {batch, 16, length});
  return {{.q = q, .k = k, .v = k, .o = q, .lse = lse, .scale = 0.1F},
          {.q = q, .k = k, .v = k, .o = q, .lse = lse, .d_o = q, .d_q = q, .d_k = k, .d_v = k, .scale = 0.1F}};
}

/// The backend asks for no more than the bound; with attention = ferry for as much.
void check_bound(AttentionChoice choice) {
  cuda::CudaOptions options;
  options.attention = choice;
  const auto backend = cuda::create_cuda_backend(options);
  const cuda::ScratchBound bound(choice);
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    for (const std::int64_t length : {1, 17, 128, 500, 2048, 4096}) {
      for (const std::int64_t width : {16, 64, 80, 96, 128}) {
        for (const std::int64_t batch : {1, 4}) {
          CAPTURE(static_cast<int>(choice), to_string(dtype), length, width, batch);
          const AttentionOps ops = attention_of(dtype, batch, length, width);
          const std::size_t asked = backend->scratch_bytes(ops.backward), bounded = bound.scratch_bytes(ops.backward);
          CHECK(asked <= bounded);
          if (choice == AttentionChoice::kFerry) {
            CHECK(asked == bounded);
            CHECK(backend->what_serves(ops.forward) == bound.what_serves(ops.forward));
            CHECK(backend->what_serves(ops.backward) == bound.what_serves(ops.backward));
          }
          CHECK(backend->scratch_bytes(ops.forward) <= bound.scratch_bytes(Matmul{}));
        }
      }
    }
  }
}

TEST_CASE("attention never asks for more than the bound, and ferry's for as much", "[gpu]") {
  gpu_or_skip();
  check_bound(AttentionChoice::kAuto);
  check_bound(AttentionChoice::kFerry);
}

TEST_CASE("cuDNN never asks for more than the bound", "[gpu]") {
  gpu_or_skip();
  if (!cuda::CudnnAttention().unavailable().empty()) {
    WARN("FERRY_GPU_TEST_SKIPPED: " << cuda::CudnnAttention().unavailable());
    return;
  }
  check_bound(AttentionChoice::kCudnn);
}

}  // namespace
}  // namespace ferry
