// SPDX-License-Identifier: Apache-2.0
// The implementations of attention on the GPU behind one interface, called directly, whatever the backend would take.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda/cuda_raii.h"
#include "backend/cuda/cudnn_attention.h"
#include "backend/cuda_attention/attention_problem.h"
#include "catch.h"
#include "kernels/attention.h"
#include "kernels/attention_parts.h"
#include "kernels/attention_plain.h"

namespace ferry::test {

struct DeviceBytes {
  explicit DeviceBytes(std::size_t size) {
    FERRY_CUDA_CHECK(cudaMalloc(memory.receive(), std::max<std::size_t>(size, 1)));
  }
  cuda::DeviceMemoryOwner memory;
};

/// The args of an op for ferry's own kernels.
struct KernelArgs {
  static kernels::HeadRows rows(const TensorView& view) {
    return {view.data, view.stride[0], view.stride[1], view.stride[2]};
  }
  template <class Op>
  static kernels::AttentionShape shape(const Op& op) {
    return {.batch = op.q.shape[0],
            .n_queries = op.q.shape[1],
            .n_keys = op.k.shape[1],
            .n_heads = op.q.shape[2],
            .n_kv_heads = op.k.shape[2],
            .width = op.q.shape[3],
            .type = op.q.dtype == DType::kBf16 ? kernels::Type::kBf16 : kernels::Type::kF32,
            .scale = op.scale};
  }
  static kernels::AttentionForwardArgs of(const AttentionForward& op, void* = nullptr) {
    return {shape(op), rows(op.q), rows(op.k), rows(op.v), rows(op.o), op.lse.as<float>()};
  }
  static kernels::AttentionBackwardArgs of(const AttentionBackward& op, void* scratch = nullptr) {
    return {shape(op),    rows(op.q),   rows(op.k),   rows(op.v),   rows(op.o), op.lse.as<float>(),
            rows(op.d_o), rows(op.d_q), rows(op.d_k), rows(op.d_v), scratch};
  }
};

/// The plain kernels.
struct Plain {
  static constexpr const char* kName = "plain";
  bool usable() const { return true; }
  template <class Op>
  bool supported(const Op& op) {
    return op.q.shape[3] <= kernels::kAttentionPlainMaxWidth;
  }
  std::size_t scratch_bytes(const AttentionForward&) { return 0; }
  std::size_t scratch_bytes(const AttentionBackward& op) {
    return kernels::attention_plain_backward_scratch_bytes(KernelArgs::shape(op));
  }
  void run(const AttentionForward& op, Scratch) {
    FERRY_CUDA_CHECK(kernels::launch_attention_plain_forward(KernelArgs::of(op), nullptr));
  }
  void run(const AttentionBackward& op, Scratch scratch) {
    FERRY_CUDA_CHECK(kernels::launch_attention_plain_backward(KernelArgs::of(op, scratch.data), nullptr));
  }
};

/// ferry's fused kernels: those for the GPU at hand.
struct Fused {
  static constexpr const char* kName = "fused";
  bool usable() const { return true; }
  template <class Op>
  bool supported(const Op& op) {
    return kernels::attention_supported(KernelArgs::of(op));
  }
  std::size_t scratch_bytes(const AttentionForward&) { return 0; }
  std::size_t scratch_bytes(const AttentionBackward& op) {
    return kernels::attention_backward_scratch_bytes(KernelArgs::shape(op));
  }
  void run(const AttentionForward& op, Scratch) {
    FERRY_CUDA_CHECK(kernels::launch_attention_forward(KernelArgs::of(op), nullptr));
  }
  void run(const AttentionBackward& op, Scratch scratch) {
    FERRY_CUDA_CHECK(kernels::launch_attention_backward(KernelArgs::of(op, scratch.data), nullptr));
  }
};

/// The fused kernels for every GPU, on whichever is at hand.
struct FusedMma : Fused {
  static constexpr const char* kName = "fused by mma.sync";
  void run(const AttentionForward& op, Scratch) {
    FERRY_CUDA_CHECK(kernels::attention::launch_attention_mma_forward(KernelArgs::of(op), nullptr));
  }
  void run(const AttentionBackward& op, Scratch scratch) {
    const kernels::AttentionBackwardArgs args = KernelArgs::of(op, scratch.data);
    FERRY_CUDA_CHECK(kernels::attention::launch_attention_delta(args, nullptr));
    FERRY_CUDA_CHECK(kernels::attention::launch_attention_mma_backward(args, nullptr));
  }
};

struct Cudnn {
  static constexpr const char* kName = "cuDNN";
  /// Says that the rest of the test is skipped where cuDNN cannot be used.
  bool usable() const {
    if (attention.unavailable().empty()) return true;
    WARN("FERRY_GPU_TEST_SKIPPED: " << attention.unavailable());
    return false;
  }
  explicit Cudnn(std::size_t max_workspace_bytes = cuda::CudnnAttention::kMaxWorkspaceBytes)
      : attention(max_workspace_bytes) {}
  template <class Op>
  bool supported(const Op& op) {
    return attention.supported(op);
  }
  template <class Op>
  std::size_t scratch_bytes(const Op& op) {
    return attention.scratch_bytes(op);
  }
  void run(const AttentionForward& op, Scratch scratch) { attention.forward(op, scratch, nullptr); }
  void run(const AttentionBackward& op, Scratch scratch) { attention.backward(op, scratch, nullptr); }
  cuda::CudnnAttention attention;
};

inline AttentionForward op_of(const AttentionProblem& problem, void* base, AttentionForward*) {
  return problem.forward(base);
}
inline AttentionBackward op_of(const AttentionProblem& problem, void* base, AttentionBackward*) {
  return problem.backward(base);
}

/// The block after the op ran on a copy of `before`, its scratch filled with `scratch_byte`.
template <class Op, class Runner>
Bytes run_on_device(Runner& runner, const AttentionProblem& problem, const Bytes& before, int scratch_byte) {
  DeviceBytes block(before.size());
  FERRY_CUDA_CHECK(cudaMemcpy(block.memory.get(), before.data(), before.size(), cudaMemcpyHostToDevice));
  const Op op = op_of(problem, block.memory.get(), static_cast<Op*>(nullptr));
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

template <class Op>
Bytes run_on_cpu(const AttentionProblem& problem, const Bytes& before) {
  const std::unique_ptr<Backend> cpu = create_backend("cpu:sync", {});
  const std::unique_ptr<Stream> stream = cpu->create_stream("test");
  const Buffer block = cpu->allocate_host(before.size(), "test");
  std::memcpy(block.data(), before.data(), before.size());
  const Op op = op_of(problem, block.data(), static_cast<Op*>(nullptr));
  const Buffer scratch = cpu->allocate_device(cpu->scratch_bytes(op), "test");
  cpu->enqueue(stream.get(), op, {scratch.data(), scratch.size_bytes()});
  cpu->sync(stream.get());
  Bytes after(before.size());
  std::memcpy(after.data(), block.data(), after.size());
  return after;
}

inline AttentionTolerance plain_tolerance(DType dtype) {
  // f32: sums of up to some hundred terms of order 1 in another order. bf16: one step of its rounding besides.
  return dtype == DType::kF32 ? AttentionTolerance{1e-5, 1e-5, 1e-5} : AttentionTolerance{0x1p-7, 2e-5, 2e-3};
}
/// cuDNN and the fused kernels round probabilities and score gradients to bf16 before they are multiplied: 2^-9 each, a
/// few of them summed.
inline AttentionTolerance fused_tolerance(DType dtype) {
  return dtype == DType::kF32 ? AttentionTolerance{0, 1e-3, 1e-3} : AttentionTolerance{0x1p-6, 0x1p-6, 1e-2};
}

/// Every output within the tolerance of the reference, and nothing else written.
template <class Op>
std::string compare(const AttentionProblem& problem, Bytes got, Bytes want, AttentionTolerance (*tolerance)(DType)) {
  const Op got_op = op_of(problem, got.data(), static_cast<Op*>(nullptr));
  const Op want_op = op_of(problem, want.data(), static_cast<Op*>(nullptr));
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
template <class Op, class Runner>
void check(Runner& runner, const AttentionProblem& problem, const Bytes& before, const Bytes& want,
           AttentionTolerance (*tolerance)(DType)) {
  const Bytes first = run_on_device<Op>(runner, problem, before, 0xff);
  const Bytes second = run_on_device<Op>(runner, problem, before, 0x3c);
  CHECK(first == second);
  CHECK(compare<Op>(problem, first, want, tolerance) == "");
}

}  // namespace ferry::test
