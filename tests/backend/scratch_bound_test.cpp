// SPDX-License-Identifier: Apache-2.0
// What a plan for a GPU assumes where there is none. On a GPU, cuda/scratch_bound_test.cpp compares.
#include "backend/cuda/scratch_bound.h"

#include "catch.h"

namespace ferry {
namespace {

struct Attention {
  std::int64_t batch, length, heads, width;
};

AttentionBackward backward_of(const Attention& a, DType dtype) {
  const TensorView q(nullptr, dtype, {a.batch, a.length, a.heads, a.width});
  const TensorView lse(nullptr, DType::kF32, {a.batch, a.heads, a.length});
  return {.q = q, .k = q, .v = q, .o = q, .lse = lse, .d_o = q, .d_q = q, .d_k = q, .d_v = q, .scale = 1};
}

std::size_t bound_of(const Attention& a, AttentionChoice choice, DType dtype = DType::kBf16) {
  return cuda::ScratchBound(choice).scratch_bytes(backward_of(a, dtype));
}

/// Both passes are served alike.
std::string server_of(std::int64_t width, AttentionChoice choice, DType dtype = DType::kBf16) {
  const cuda::ScratchBound bound(choice);
  const AttentionBackward op = backward_of({1, 1024, 32, width}, dtype);
  const AttentionForward forward = {.q = op.q, .k = op.k, .v = op.v, .o = op.o, .lse = op.lse, .scale = op.scale};
  CHECK(bound.what_serves(forward) == bound.what_serves(op));
  return bound.what_serves(op);
}

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr AttentionChoice kChoices[] = {AttentionChoice::kAuto, AttentionChoice::kCudnn, AttentionChoice::kFerry};

TEST_CASE("a cuDNN attention's bound is above what it was seen to ask for, and never above the limit of a call") {
  const auto bound = [](const Attention& a) { return bound_of(a, AttentionChoice::kCudnn); };
  CHECK(bound({1, 2048, 32, 64}) >= 285'000'000);
  CHECK(bound({1, 2048, 32, 128}) >= 302'000'000);
  CHECK(bound({1, 1024, 32, 64}) >= 32 * (2 * 1024 * 1024 + 1024 * 64 * 4));
  CHECK(bound({1, 1024, 32, 64}) < 100 * kMiB);
  CHECK(bound({16, 8192, 32, 128}) == 300 * kMiB);
}

TEST_CASE("fused attention needs two numbers a padded row and head, unless cuDNN is asked for") {
  for (const std::int64_t width : {64, 80, 96, 128}) {
    for (const AttentionChoice choice : {AttentionChoice::kAuto, AttentionChoice::kFerry}) {
      CHECK(bound_of({4, 2048, 32, width}, choice) == 2 * 4 * 2048 * 32 * sizeof(float));
      CHECK(bound_of({1, 1, 2, width}, choice) == 2 * 128 * 2 * sizeof(float));
    }
  }
}

TEST_CASE("heads of other widths are cuDNN's with attention = auto, the plain kernels' with ferry") {
  const Attention odd = {1, 1024, 32, 72};
  CHECK(bound_of(odd, AttentionChoice::kAuto) == bound_of(odd, AttentionChoice::kCudnn));
  CHECK(bound_of(odd, AttentionChoice::kFerry) == 1024 * 32 * sizeof(float));
}

TEST_CASE("f32 attention runs on the plain kernels, which need a number a row and head") {
  for (const AttentionChoice choice : kChoices)
    CHECK(bound_of({2, 100, 6, 64}, choice, DType::kF32) == 2 * 100 * 6 * 4);
}

TEST_CASE("a plan without a GPU says what would serve attention, and why") {
  const std::string widths = "bf16 heads of 64, 80, 96 or 128 elements", cudnn = "cuDNN, or plain kernels where it";
  const std::string plain = "plain kernels, which are many times slower: ";
  CHECK(server_of(64, AttentionChoice::kAuto) == "ferry's fused kernels, which take bf16 heads of 64 elements");
  CHECK(server_of(64, AttentionChoice::kFerry) == server_of(64, AttentionChoice::kAuto));
  CHECK(server_of(64, AttentionChoice::kCudnn) == cudnn + " refuses, as attention = cudnn asks");
  CHECK(server_of(72, AttentionChoice::kAuto) ==
        cudnn + " refuses: ferry's fused kernels take " + widths + ", here are bf16 heads of 72 elements");
  CHECK(server_of(72, AttentionChoice::kFerry) ==
        plain + "attention = ferry takes " + widths + " in rows of multiples of 16 bytes");
  for (const AttentionChoice choice : kChoices) {
    CHECK(server_of(64, choice, DType::kF32) == plain + "the faster ones take bf16 alone");
  }
  CHECK(cuda::ScratchBound(AttentionChoice::kAuto).what_serves(Rope{}).empty());
}

TEST_CASE("a bound is exact but for the attention that may be cuDNN's") {
  const auto is_exact = [](std::int64_t width, AttentionChoice choice, DType dtype = DType::kBf16) {
    return cuda::ScratchBound(choice).is_exact(backward_of({1, 1024, 32, width}, dtype));
  };
  CHECK(is_exact(64, AttentionChoice::kAuto));
  CHECK_FALSE(is_exact(64, AttentionChoice::kCudnn));
  CHECK_FALSE(is_exact(72, AttentionChoice::kAuto));
  CHECK(is_exact(72, AttentionChoice::kFerry));
  for (const AttentionChoice choice : kChoices) CHECK(is_exact(64, choice, DType::kF32));
  CHECK(cuda::ScratchBound(AttentionChoice::kCudnn).is_exact(Matmul{}));
}

TEST_CASE("every matrix product has one workspace, and ops without sums have none") {
  const cuda::ScratchBound bound(AttentionChoice::kAuto);
  CHECK(bound.scratch_bytes(Matmul{}) == 32 * kMiB);
  CHECK(bound.scratch_bytes(Rope{}) == 0);
  const TensorView x(nullptr, DType::kBf16, {1000, 100});
  CHECK(bound.scratch_bytes(SumOfSquares{.x = x, .skip = {}, .y = {}}) == 4 * 4);
  RmsNormBackward norm;
  norm.x = x;
  CHECK(bound.scratch_bytes(norm) == 264 * 104 * 4);
}

TEST_CASE("bounds stand in for cuda alone, and only where there is no GPU") {
  CHECK(create_scratch_bound("cpu", {}) == nullptr);
  CHECK(create_scratch_bound("trace:cpu", {}) == nullptr);
}

}  // namespace
}  // namespace ferry
