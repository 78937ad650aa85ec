// SPDX-License-Identifier: Apache-2.0
// cuDNN's attention, ferry's fused kernels and the plain ones against the CPU backend, and against themselves, bit for
// bit.
#include "backend/cuda_attention/attention_problem.h"
#include "backend/cuda_attention/attention_runners.h"
#include "catch.h"
#include "gpu_or_skip.h"

namespace ferry::test {
namespace {

using Shape = AttentionProblem::Shape;
using Tolerance = AttentionTolerance (*)(DType);

/// Both passes of every shape that the runner takes; at least `n_least` of each.
template <class Runner>
void check_against_cpu(Tolerance tolerance, int n_least) {
  Runner runner;
  if (!runner.usable()) return;
  int n_forward = 0, n_backward = 0;
  for (const Shape& shape : attention_shapes()) {
    const AttentionProblem problem(shape);
    INFO(Runner::kName << ' ' << problem.describe());
    const Bytes inputs = problem.random_inputs(11);
    const Bytes after_forward = run_on_cpu<AttentionForward>(problem, inputs);
    if (runner.supported(problem.forward(nullptr))) {
      ++n_forward;
      check<AttentionForward>(runner, problem, inputs, after_forward, tolerance);
    }
    if (runner.supported(problem.backward(nullptr))) {
      ++n_backward;
      const Bytes after_backward = run_on_cpu<AttentionBackward>(problem, after_forward);
      check<AttentionBackward>(runner, problem, after_forward, after_backward, tolerance);
    }
  }
  CHECK(n_forward >= n_least);
  CHECK(n_backward >= n_least);
}

}  // namespace

TEST_CASE("plain attention agrees with the CPU and with itself", "[gpu]") {
  gpu_or_skip();
  check_against_cpu<Plain>(plain_tolerance, static_cast<int>(attention_shapes().size()));
}

TEST_CASE("cuDNN attention agrees with the CPU and with itself", "[gpu]") {
  gpu_or_skip();
  check_against_cpu<Cudnn>(fused_tolerance, 8);
}

TEST_CASE("fused attention agrees with the CPU and with itself", "[gpu]") {
  gpu_or_skip();
  check_against_cpu<Fused>(fused_tolerance, 8);
  check_against_cpu<FusedMma>(fused_tolerance, 8);
}

TEST_CASE("cuDNN attention refuses what it cannot take", "[gpu]") {
  gpu_or_skip();
  Cudnn cudnn;
  const auto supported = [&](const Shape& shape, std::size_t offset) {
    const AttentionProblem problem(shape);
    auto* const base = reinterpret_cast<void*>(4096 + offset);
    return cudnn.supported(problem.forward(base)) || cudnn.supported(problem.backward(base));
  };
  CHECK(supported({DType::kBf16, 1, 128, 128, 2, 1, 64}, 0) == cudnn.attention.unavailable().empty());
  CHECK_FALSE(supported({DType::kF32, 1, 128, 128, 2, 1, 64}, 0));
  CHECK_FALSE(supported({DType::kBf16, 1, 128, 256, 2, 1, 64}, 0));
  CHECK_FALSE(supported({DType::kBf16, 1, 128, 128, 2, 1, 60}, 0));
  CHECK_FALSE(supported({DType::kBf16, 1, 128, 128, 2, 1, 64}, 2));
}

TEST_CASE("cuDNN attention split by sequence and by key/value head agrees with the CPU", "[gpu]") {
  gpu_or_skip();
  const AttentionProblem problem({DType::kBf16, 4, 384, 384, 8, 4, 64});
  const Bytes inputs = problem.random_inputs(13);
  const Bytes after_forward = run_on_cpu<AttentionForward>(problem, inputs);
  const Bytes after_backward = run_on_cpu<AttentionBackward>(problem, after_forward);
  Cudnn whole;
  if (!whole.usable()) return;
  REQUIRE(whole.supported(problem.backward(nullptr)));
  const std::size_t whole_bytes = whole.scratch_bytes(problem.backward(nullptr));
  // 4 sequences of 4 key/value heads: a part of 16 is one head of one sequence.
  for (const std::size_t parts : {2, 3, 4, 7, 14}) {
    INFO("workspace of " << whole_bytes << " bytes in at least " << parts << " parts");
    Cudnn split(whole_bytes / parts);
    REQUIRE(split.supported(problem.backward(nullptr)));
    CHECK(split.scratch_bytes(problem.backward(nullptr)) <= whole_bytes / parts);
    check<AttentionBackward>(split, problem, after_forward, after_backward, fused_tolerance);
  }
  Cudnn none(whole_bytes / 1000);
  CHECK_FALSE(none.supported(problem.backward(nullptr)));
}

TEST_CASE("attention of a real size gives the same bits twice, and fused kernels agree with the plain ones", "[gpu]") {
  gpu_or_skip();
  Plain plain;
  Cudnn cudnn;
  for (const std::int64_t width : {64, 128}) {
    const AttentionProblem problem({DType::kBf16, 4, 2048, 2048, 32, 8, width});
    INFO(problem.describe());
    const Bytes inputs = problem.random_inputs(14);
    const Bytes after_forward = run_on_device<AttentionForward>(plain, problem, inputs, 0);
    const Bytes after_backward = run_on_device<AttentionBackward>(plain, problem, after_forward, 0);
    CHECK(run_on_device<AttentionBackward>(plain, problem, after_forward, 0xff) == after_backward);
    Fused fused;
    check<AttentionForward>(fused, problem, inputs, after_forward, fused_tolerance);
    check<AttentionBackward>(fused, problem, after_forward, after_backward, fused_tolerance);
    if (!cudnn.usable()) continue;
    REQUIRE(cudnn.supported(problem.forward(nullptr)));
    REQUIRE(cudnn.supported(problem.backward(nullptr)));
    CHECK(cudnn.scratch_bytes(problem.backward(nullptr)) <= cuda::CudnnAttention::kMaxWorkspaceBytes);
    check<AttentionForward>(cudnn, problem, inputs, after_forward, fused_tolerance);
    check<AttentionBackward>(cudnn, problem, after_forward, after_backward, fused_tolerance);
  }
}

}  // namespace ferry::test
