// SPDX-License-Identifier: Apache-2.0
// ferry's fused attention at sizes beyond the CPU's reach, where the plain kernels are the reference; and what the
// backend makes of the option attention.
#include <cmath>
#include <utility>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda_attention/attention_problem.h"
#include "backend/cuda_attention/attention_runners.h"
#include "catch.h"
#include "gpu_or_skip.h"

namespace ferry::test {
namespace {

using Shape = AttentionProblem::Shape;

constexpr std::int64_t kWidths[] = {64, 80, 96, 128};

/// Both passes against the plain kernels.
template <class Runner>
void check_against_plain(Runner& runner, const Shape& shape) {
  const AttentionProblem problem(shape);
  INFO(Runner::kName << ' ' << problem.describe());
  Plain plain;
  const Bytes inputs = problem.random_inputs(15);
  const Bytes after_forward = run_on_device<AttentionForward>(plain, problem, inputs, 0);
  const Bytes after_backward = run_on_device<AttentionBackward>(plain, problem, after_forward, 0);
  REQUIRE(runner.supported(problem.forward(nullptr)));
  REQUIRE(runner.supported(problem.backward(nullptr)));
  check<AttentionForward>(runner, problem, inputs, after_forward, fused_tolerance);
  check<AttentionBackward>(runner, problem, after_forward, after_backward, fused_tolerance);
}

/// A backend whose option attention is `choice`, with the interface of the runners.
struct Chosen {
  explicit Chosen(AttentionChoice choice) {
    cuda::CudaOptions options;
    options.attention = choice;
    backend = cuda::create_cuda_backend(options);
    stream = backend->create_stream("test");
  }
  template <class Op>
  std::size_t scratch_bytes(const Op& op) {
    return backend->scratch_bytes(op);
  }
  template <class Op>
  void run(const Op& op, Scratch scratch) {
    backend->enqueue(stream.get(), op, scratch);
    backend->sync(stream.get());
  }
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Stream> stream;
};

/// Whether the backend gives the bits of the runner, and asks for as much scratch, in both passes.
template <class Runner>
void check_serves(Chosen& chosen, Runner& runner, const Shape& shape) {
  const AttentionProblem problem(shape);
  INFO(Runner::kName << ' ' << problem.describe());
  const Bytes inputs = problem.random_inputs(16);
  const Bytes after_forward = run_on_device<AttentionForward>(runner, problem, inputs, 0);
  CHECK(run_on_device<AttentionForward>(chosen, problem, inputs, 0) == after_forward);
  CHECK(run_on_device<AttentionBackward>(chosen, problem, after_forward, 0) ==
        run_on_device<AttentionBackward>(runner, problem, after_forward, 0));
  CHECK(chosen.scratch_bytes(problem.backward(nullptr)) == runner.scratch_bytes(problem.backward(nullptr)));
}

constexpr Shape kFusedShape = {DType::kBf16, 2, 300, 300, 4, 2, 64};
constexpr Shape kF32Shape = {DType::kF32, 2, 300, 300, 4, 2, 64};
constexpr Shape kOddWidth = {DType::kBf16, 1, 129, 129, 2, 1, 72};
constexpr Shape kCachedOddWidth = {DType::kBf16, 1, 5, 129, 2, 1, 72};

bool is_finite(const TensorView& view) {
  const auto* const values = view.as<Bf16>();
  for (std::int64_t batch = 0; batch < view.shape[0]; ++batch) {
    for (std::int64_t row = 0; row < view.shape[1]; ++row) {
      const Bf16* const at = values + batch * view.stride[0] + row * view.stride[1];
      for (std::int64_t i = 0; i < view.shape[2] * view.shape[3]; ++i) {
        if (!std::isfinite(to_f32(at[i]))) return false;
      }
    }
  }
  return true;
}

}  // namespace

TEST_CASE("fused attention takes lengths that fill no tile, at every width", "[gpu]") {
  gpu_or_skip();
  Fused fused;
  FusedMma mma;
  for (const std::int64_t width : kWidths) {
    for (const std::int64_t length : {1, 100, 129, 1000, 4097}) {
      for (const auto& [heads, kv_heads] : {std::pair{4, 1}, {2, 2}, {6, 2}}) {
        const Shape shape = {DType::kBf16, length > 1000 ? 1 : 2, length, length, heads, kv_heads, width};
        check_against_plain(fused, shape);
        if (length <= 1000) check_against_plain(mma, shape);
      }
    }
  }
}

TEST_CASE("fused attention takes queries behind cached keys", "[gpu]") {
  gpu_or_skip();
  Fused fused;
  FusedMma mma;
  for (const std::int64_t width : kWidths) {
    for (const auto& [queries, keys] : {std::pair{1, 2}, {1, 4097}, {100, 357}, {129, 1000}, {500, 501}}) {
      const Shape shape = {DType::kBf16, 2, queries, keys, 8, 2, width};
      check_against_plain(fused, shape);
      check_against_plain(mma, shape);
    }
  }
}

TEST_CASE("fused attention agrees with the plain kernels where every multiprocessor has many tiles", "[gpu]") {
  gpu_or_skip();
  Fused fused;
  for (const std::int64_t width : kWidths) check_against_plain(fused, {DType::kBf16, 3, 2048, 2048, 8, 8, width});
}

TEST_CASE("fused attention refuses what it cannot take", "[gpu]") {
  gpu_or_skip();
  Fused fused;
  const auto supported = [&](const Shape& shape, std::size_t offset) {
    const AttentionProblem problem(shape);
    auto* const base = reinterpret_cast<void*>(4096 + offset);
    return fused.supported(problem.forward(base)) || fused.supported(problem.backward(base));
  };
  CHECK(supported({DType::kBf16, 1, 128, 128, 2, 1, 64}, 0));
  CHECK_FALSE(supported({DType::kF32, 1, 128, 128, 2, 1, 64}, 0));
  CHECK_FALSE(supported({DType::kBf16, 1, 128, 128, 2, 1, 72}, 0));
  CHECK_FALSE(supported({DType::kBf16, 1, 128, 128, 2, 1, 256}, 0));
  CHECK_FALSE(supported({DType::kBf16, 1, 128, 128, 2, 1, 64}, 2));
  AttentionForward odd_rows = AttentionProblem({DType::kBf16, 1, 128, 128, 2, 1, 64}).forward(nullptr);
  odd_rows.k.stride[1] += 1;
  CHECK_FALSE(fused.supported(odd_rows));
}

TEST_CASE("fused attention needs scratch linear in the length", "[gpu]") {
  gpu_or_skip();
  Fused fused;
  const auto bytes_of = [&](std::int64_t length) {
    return fused.scratch_bytes(AttentionProblem({DType::kBf16, 1, length, length, 2, 1, 64}).backward(nullptr));
  };
  CHECK(bytes_of(1024) == 2 * 2 * 1024 * sizeof(float));
  CHECK(bytes_of(64 * 1024) == 64 * bytes_of(1024));
}

TEST_CASE("fused attention of 131072 tokens is finite and gives the same bits twice", "[gpu]") {
  gpu_or_skip();
  Fused fused;
  for (const std::int64_t width : {64, 128}) {
    const AttentionProblem problem({DType::kBf16, 1, 131072, 131072, 2, 1, width});
    INFO(problem.describe());
    const Bytes inputs = problem.random_inputs(17);
    const Bytes after_forward = run_on_device<AttentionForward>(fused, problem, inputs, 0xff);
    CHECK(run_on_device<AttentionForward>(fused, problem, inputs, 0x3c) == after_forward);
    Bytes after_backward = run_on_device<AttentionBackward>(fused, problem, after_forward, 0xff);
    CHECK(run_on_device<AttentionBackward>(fused, problem, after_forward, 0x3c) == after_backward);
    const AttentionBackward op = problem.backward(after_backward.data());
    for (const TensorView* view : {&op.o, &op.d_q, &op.d_k, &op.d_v}) CHECK(is_finite(*view));
  }
}

TEST_CASE("attention = auto takes the fused kernels, and the plain ones for f32", "[gpu]") {
  gpu_or_skip();
  Chosen chosen(AttentionChoice::kAuto);
  Fused fused;
  Plain plain;
  check_serves(chosen, fused, kFusedShape);
  check_serves(chosen, plain, kF32Shape);
}

TEST_CASE("attention = auto takes cuDNN for other head widths, and the plain kernels for those behind cached keys",
          "[gpu]") {
  gpu_or_skip();
  Cudnn cudnn;
  if (!cudnn.usable()) return;
  Chosen chosen(AttentionChoice::kAuto);
  Plain plain;
  REQUIRE(cudnn.supported(AttentionProblem(kOddWidth).backward(nullptr)));
  check_serves(chosen, cudnn, kOddWidth);
  check_serves(chosen, plain, kCachedOddWidth);
}

TEST_CASE("attention = ferry takes the fused kernels, and the plain ones for what these refuse", "[gpu]") {
  gpu_or_skip();
  Chosen chosen(AttentionChoice::kFerry);
  Fused fused;
  Plain plain;
  check_serves(chosen, fused, kFusedShape);
  check_serves(chosen, plain, kF32Shape);
  check_serves(chosen, plain, kOddWidth);
}

TEST_CASE("attention = cudnn takes cuDNN, and the plain kernels for what it refuses", "[gpu]") {
  gpu_or_skip();
  Cudnn cudnn;
  if (!cudnn.usable()) return;
  Chosen chosen(AttentionChoice::kCudnn);
  Plain plain;
  check_serves(chosen, cudnn, kFusedShape);
  check_serves(chosen, plain, kF32Shape);
  check_serves(chosen, plain, kCachedOddWidth);
}

TEST_CASE("the backend says what serves an attention, and why", "[gpu]") {
  gpu_or_skip();
  const auto served = [](const Chosen& chosen, const Shape& shape) {
    const AttentionProblem problem(shape);
    const std::string forward = chosen.backend->what_serves(problem.forward(nullptr));
    CHECK(chosen.backend->what_serves(problem.backward(nullptr)) == forward);
    return forward;
  };
  const std::string plain = "plain kernels, which are many times slower: ";
  const Chosen chosen(AttentionChoice::kAuto), ferry(AttentionChoice::kFerry);
  CHECK(served(chosen, kFusedShape) == "ferry's fused kernels, which take bf16 heads of 64 elements");
  CHECK(served(chosen, kF32Shape) == plain + "the faster ones take bf16 alone");
  CHECK(served(ferry, kFusedShape) == served(chosen, kFusedShape));
  CHECK(served(ferry, kOddWidth).starts_with(plain + "attention = ferry takes bf16 heads of 64, "));
  CHECK(chosen.backend->what_serves(Rope{}).empty());
  Cudnn cudnn;
  if (!cudnn.usable()) return;
  const Chosen by_name(AttentionChoice::kCudnn);
  CHECK(served(chosen, kOddWidth).starts_with("cuDNN "));
  CHECK(served(chosen, kOddWidth).ends_with(" or 128 elements, here are bf16 heads of 72 elements"));
  CHECK(served(chosen, kCachedOddWidth) == plain + "neither ferry's fused kernels nor cuDNN take it");
  CHECK(served(by_name, kFusedShape).ends_with(", as attention = cudnn asks"));
  CHECK(served(by_name, kCachedOddWidth) == plain + "cuDNN does not take it");
}

TEST_CASE("attention asks for the same scratch wherever the data lie", "[gpu]") {
  gpu_or_skip();
  const AttentionProblem problem(kFusedShape);
  const AttentionBackward op = problem.backward(nullptr), shifted = problem.backward(reinterpret_cast<void*>(4096 + 4));
  REQUIRE_FALSE(Fused().supported(shifted));
  for (const AttentionChoice choice : {AttentionChoice::kAuto, AttentionChoice::kFerry}) {
    CHECK(Chosen(choice).scratch_bytes(shifted) == Fused().scratch_bytes(op));
  }
}

}  // namespace ferry::test
