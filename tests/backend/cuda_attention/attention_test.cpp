// SPDX-License-Identifier: Apache-2.0
// cuDNN's attention and the plain kernels against the CPU backend, and against themselves, bit for bit.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda/cuda_raii.h"
#include "backend/cuda/cudnn_attention.h"
#include "backend/cuda_attention/attention_problem.h"
#include "catch.h"
#include "gpu_or_skip.h"
#include "kernels/attention_plain.h"

namespace ferry::test {
namespace {

using Shape = AttentionProblem::Shape;

struct DeviceBytes {
  explicit DeviceBytes(std::size_t size) {
    FERRY_CUDA_CHECK(cudaMalloc(memory.receive(), std::max<std::size_t>(size, 1)));
  }
  cuda::DeviceMemoryOwner memory;
};

/// The plain kernels with the interface of CudnnAttention.
struct PlainAttention {
  static kernels::HeadRows rows(const TensorView& view) {
    return {view.data, view.stride[0], view.stride[1], view.stride[2]};
  }
  template <class Attention>
  static kernels::AttentionShape shape(const Attention& op) {
    return {.batch = op.q.shape[0],
            .n_queries = op.q.shape[1],
            .n_keys = op.k.shape[1],
            .n_heads = op.q.shape[2],
            .n_kv_heads = op.k.shape[2],
            .width = op.q.shape[3],
            .type = op.q.dtype == DType::kBf16 ? kernels::Type::kBf16 : kernels::Type::kF32,
            .scale = op.scale};
  }
  std::size_t scratch_bytes(const AttentionForward&) { return 0; }
  std::size_t scratch_bytes(const AttentionBackward& op) {
    return kernels::attention_plain_backward_scratch_bytes(shape(op));
  }
  void run(const AttentionForward& op, Scratch) {
    FERRY_CUDA_CHECK(kernels::launch_attention_plain_forward(
        {shape(op), rows(op.q), rows(op.k), rows(op.v), rows(op.o), op.lse.as<float>()}, nullptr));
  }
  void run(const AttentionBackward& op, Scratch scratch) {
    FERRY_CUDA_CHECK(kernels::launch_attention_plain_backward(
        {shape(op), rows(op.q), rows(op.k), rows(op.v), rows(op.o), op.lse.as<float>(), rows(op.d_o), rows(op.d_q),
         rows(op.d_k), rows(op.d_v), scratch.data},
        nullptr));
  }
};

struct Cudnn {
  /// Says that the rest of the test is skipped where cuDNN cannot be used.
  bool usable() const {
    if (attention.unavailable().empty()) return true;
    WARN("FERRY_GPU_TEST_SKIPPED: " << attention.unavailable());
    return false;
  }
  explicit Cudnn(std::size_t max_workspace_bytes = cuda::CudnnAttention::kMaxWorkspaceBytes)
      : attention(max_workspace_bytes) {}
  template <class Attention>
  std::size_t scratch_bytes(const Attention& op) {
    return attention.scratch_bytes(op);
  }
  void run(const AttentionForward& op, Scratch scratch) { attention.forward(op, scratch, nullptr); }
  void run(const AttentionBackward& op, Scratch scratch) { attention.backward(op, scratch, nullptr); }
  cuda::CudnnAttention attention;
};

auto op_of(const AttentionProblem& problem, void* base, AttentionForward*) { return problem.forward(base); }
auto op_of(const AttentionProblem& problem, void* base, AttentionBackward*) { return problem.backward(base); }

/// The block after the op ran on a copy of `before`, its scratch filled with `scratch_byte`.
template <class Attention, class Runner>
Bytes run_on_device(Runner& runner, const AttentionProblem& problem, const Bytes& before, int scratch_byte) {
  DeviceBytes block(before.size());
  FERRY_CUDA_CHECK(cudaMemcpy(block.memory.get(), before.data(), before.size(), cudaMemcpyHostToDevice));
  const Attention op = op_of(problem, block.memory.get(), static_cast<Attention*>(nullptr));
  const std::size_t scratch_bytes = runner.scratch_bytes(op);
  DeviceBytes scratch(scratch_bytes);
  FERRY_CUDA_CHECK(cudaMemset(scratch.memory.get(), scratch_byte, std::max<std::size_t>(scratch_bytes, 1)));
  FERRY_CUDA_CHECK(cudaDeviceSynchronize());
  runner.run(op, {scratch.memory.get(), scratch_bytes});
  FERRY_CUDA_CHECK(cudaDeviceSynchronize());
  Bytes after(before.size());
  FERRY_CUDA_CHECK(cudaMemcpy(after.data(), block.memory.get(), after.size(), cudaMemcpyDeviceToHost));
  return after;
}

template <class Attention>
Bytes run_on_cpu(const AttentionProblem& problem, const Bytes& before) {
  const std::unique_ptr<Backend> cpu = create_backend("cpu:sync", {});
  const std::unique_ptr<Stream> stream = cpu->create_stream("test");
  const Buffer block = cpu->allocate_host(before.size(), "test");
  std::memcpy(block.data(), before.data(), before.size());
  const Attention op = op_of(problem, block.data(), static_cast<Attention*>(nullptr));
  const Buffer scratch = cpu->allocate_device(cpu->scratch_bytes(op), "test");
  cpu->enqueue(stream.get(), op, {scratch.data(), scratch.size_bytes()});
  cpu->sync(stream.get());
  Bytes after(before.size());
  std::memcpy(after.data(), block.data(), after.size());
  return after;
}

AttentionTolerance plain_tolerance(DType dtype) {
  // f32: sums of up to some hundred terms of order 1 in another order. bf16: one step of its rounding besides.
  return dtype == DType::kF32 ? AttentionTolerance{1e-5, 1e-5, 1e-5} : AttentionTolerance{0x1p-7, 2e-5, 2e-3};
}
// cuDNN rounds probabilities and score gradients to bf16 before they are multiplied: 2^-9 each, a few of them summed.
AttentionTolerance cudnn_tolerance(DType dtype) {
  return dtype == DType::kF32 ? AttentionTolerance{0, 1e-3, 1e-3} : AttentionTolerance{0x1p-6, 0x1p-6, 1e-2};
}

/// Every output within the tolerance of the reference, and nothing else written.
template <class Attention>
std::string compare(const AttentionProblem& problem, Bytes got, Bytes want, AttentionTolerance (*tolerance)(DType)) {
  const Attention got_op = op_of(problem, got.data(), static_cast<Attention*>(nullptr));
  const Attention want_op = op_of(problem, want.data(), static_cast<Attention*>(nullptr));
  std::vector<TensorView> outputs;
  want_op.visit([&](Access access, const char*, const TensorView& view) {
    if (access == Access::kWrite) outputs.push_back(view);
  });
  std::string result;
  std::size_t i = 0;
  got_op.visit([&](Access access, const char* name, const TensorView& view) {
    if (access != Access::kWrite) return;
    result += difference(name, view, outputs[i], tolerance(view.dtype));
    poison(view);
    poison(outputs[i]);
    ++i;
  });
  return got == want ? result : result + "something outside the outputs was written";
}

/// Runs twice with different rests in the scratch, and compares with the reference.
template <class Attention, class Runner>
void check(Runner& runner, const AttentionProblem& problem, const Bytes& before, const Bytes& want,
           AttentionTolerance (*tolerance)(DType)) {
  const Bytes first = run_on_device<Attention>(runner, problem, before, 0xff);
  const Bytes second = run_on_device<Attention>(runner, problem, before, 0x3c);
  CHECK(first == second);
  CHECK(compare<Attention>(problem, first, want, tolerance) == "");
}

std::vector<Shape> shapes() {
  std::vector<Shape> list;
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    list.insert(list.end(), {{dtype, 1, 1, 1, 2, 1, 64},
                             {dtype, 2, 7, 7, 4, 2, 64},
                             {dtype, 1, 16, 16, 1, 1, 128},
                             {dtype, 2, 33, 33, 8, 2, 80},
                             {dtype, 2, 100, 100, 8, 2, 128},
                             {dtype, 1, 129, 129, 4, 4, 96},
                             {dtype, 2, 257, 257, 8, 2, 64},
                             {dtype, 1, 17, 17, 2, 2, 10},
                             {dtype, 1, 5, 37, 4, 2, 64},
                             {dtype, 2, 1, 70, 4, 1, 128},
                             {dtype, 1, 64, 65, 2, 1, 72},
                             {dtype, 1, 40, 40, 2, 1, 256},
                             {dtype, 1, 24, 24, 2, 1, 200},
                             {dtype, 3, 512, 512, 8, 2, 64}});
  }
  std::mt19937 generator(7);
  const auto draw = [&](std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(generator() % static_cast<std::uint32_t>(high - low + 1));
  };
  for (int i = 0; i < 16; ++i) {
    const std::int64_t length = draw(1, 300), kv_heads = draw(1, 3), width = 8 * draw(1, 16);
    const std::int64_t past = i % 4 == 3 ? draw(1, 60) : 0;
    list.push_back({i % 2 == 0 ? DType::kBf16 : DType::kF32, draw(1, 3), length, length + past, kv_heads * draw(1, 4),
                    kv_heads, width});
  }
  return list;
}

}  // namespace

TEST_CASE("plain attention agrees with the CPU and with itself", "[gpu]") {
  gpu_or_skip();
  PlainAttention plain;
  for (const Shape& shape : shapes()) {
    const AttentionProblem problem(shape);
    INFO(problem.describe());
    const Bytes inputs = problem.random_inputs(11);
    const Bytes after_forward = run_on_cpu<AttentionForward>(problem, inputs);
    check<AttentionForward>(plain, problem, inputs, after_forward, plain_tolerance);
    const Bytes after_backward = run_on_cpu<AttentionBackward>(problem, after_forward);
    check<AttentionBackward>(plain, problem, after_forward, after_backward, plain_tolerance);
  }
}

TEST_CASE("cuDNN attention agrees with the CPU and with itself", "[gpu]") {
  gpu_or_skip();
  Cudnn cudnn;
  if (!cudnn.usable()) return;
  int n_forward = 0, n_backward = 0;
  for (const Shape& shape : shapes()) {
    const AttentionProblem problem(shape);
    INFO(problem.describe());
    const Bytes inputs = problem.random_inputs(12);
    const Bytes after_forward = run_on_cpu<AttentionForward>(problem, inputs);
    if (cudnn.attention.supported(problem.forward(nullptr))) {
      ++n_forward;
      check<AttentionForward>(cudnn, problem, inputs, after_forward, cudnn_tolerance);
    }
    if (cudnn.attention.supported(problem.backward(nullptr))) {
      ++n_backward;
      const Bytes after_backward = run_on_cpu<AttentionBackward>(problem, after_forward);
      check<AttentionBackward>(cudnn, problem, after_forward, after_backward, cudnn_tolerance);
    }
  }
  CHECK(n_forward >= 8);
  CHECK(n_backward >= 8);
}

TEST_CASE("cuDNN attention refuses what it cannot take", "[gpu]") {
  gpu_or_skip();
  Cudnn cudnn;
  const auto supported = [&](const Shape& shape, std::size_t offset) {
    const AttentionProblem problem(shape);
    auto* const base = reinterpret_cast<void*>(4096 + offset);
    return cudnn.attention.supported(problem.forward(base)) || cudnn.attention.supported(problem.backward(base));
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
  REQUIRE(whole.attention.supported(problem.backward(nullptr)));
  const std::size_t whole_bytes = whole.attention.scratch_bytes(problem.backward(nullptr));
  // 4 sequences of 4 key/value heads: a part of 16 is one head of one sequence.
  for (const std::size_t parts : {2, 3, 4, 7, 14}) {
    INFO("workspace of " << whole_bytes << " bytes in at least " << parts << " parts");
    Cudnn split(whole_bytes / parts);
    REQUIRE(split.attention.supported(problem.backward(nullptr)));
    CHECK(split.attention.scratch_bytes(problem.backward(nullptr)) <= whole_bytes / parts);
    check<AttentionBackward>(split, problem, after_forward, after_backward, cudnn_tolerance);
  }
  Cudnn none(whole_bytes / 1000);
  CHECK_FALSE(none.attention.supported(problem.backward(nullptr)));
}

TEST_CASE("attention of a real size gives the same bits twice, and cuDNN agrees with the plain kernels", "[gpu]") {
  gpu_or_skip();
  PlainAttention plain;
  Cudnn cudnn;
  for (const std::int64_t width : {64, 128}) {
    const AttentionProblem problem({DType::kBf16, 4, 2048, 2048, 32, 8, width});
    INFO(problem.describe());
    const Bytes inputs = problem.random_inputs(14);
    const Bytes after_forward = run_on_device<AttentionForward>(plain, problem, inputs, 0);
    const Bytes after_backward = run_on_device<AttentionBackward>(plain, problem, after_forward, 0);
    CHECK(run_on_device<AttentionBackward>(plain, problem, after_forward, 0xff) == after_backward);
    if (!cudnn.usable()) return;
    REQUIRE(cudnn.attention.supported(problem.forward(nullptr)));
    REQUIRE(cudnn.attention.supported(problem.backward(nullptr)));
    CHECK(cudnn.attention.scratch_bytes(problem.backward(nullptr)) <= cuda::CudnnAttention::kMaxWorkspaceBytes);
    check<AttentionForward>(cudnn, problem, inputs, after_forward, cudnn_tolerance);
    check<AttentionBackward>(cudnn, problem, after_forward, after_backward, cudnn_tolerance);
  }
}

}  // namespace ferry::test
