// SPDX-License-Identifier: Apache-2.0
// Causal attention of bf16 tensors through cuDNN. no_cudnn.cpp stands in where ferry is built without cuDNN.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <string>

#include "backend/backend.h"
#include "backend/cuda/workspace.h"

namespace ferry::cuda {

/// The attention of one device. Graphs are built per shape and strides at first use and kept. Any thread may call; each
/// call holds a mutex. Gradients are bitwise reproducible.
class CudnnAttention {
 public:
  static constexpr std::size_t kMaxWorkspaceBytes = kMaxAttentionWorkspaceBytes;

  /// Uses the calling thread's current device, or `unavailable()` says why not. Later callers have the same current
  /// device.
  explicit CudnnAttention(std::size_t max_workspace_bytes = kMaxWorkspaceBytes);
  ~CudnnAttention();
  CudnnAttention(const CudnnAttention&) = delete;
  CudnnAttention& operator=(const CudnnAttention&) = delete;

  /// "cuDNN 9.14.0", or empty where cuDNN is not used.
  const std::string& version() const;
  /// Why cuDNN is not used and what to do about it; empty where it is used.
  const std::string& unavailable() const;

  /// True when cuDNN takes the op: a checked op (check_op) in bf16, S == T, every row 16-byte aligned, a shape cuDNN
  /// has a plan for and whose workspace fits. Depends on shapes, dtypes, strides and alignment of the data pointers
  /// alone; null pointers count as aligned. The first call for a shape builds its graphs (up to seconds); no later call
  /// does.
  bool supported(const AttentionForward& op);
  bool supported(const AttentionBackward& op);

  /// Scratch that a supported op needs.
  std::size_t scratch_bytes(const AttentionForward& op);
  std::size_t scratch_bytes(const AttentionBackward& op);

  /// Enqueues a supported op; `scratch` has at least scratch_bytes(op). Throws Error{kDevice}.
  void forward(const AttentionForward& op, Scratch scratch, cudaStream_t stream);
  void backward(const AttentionBackward& op, Scratch scratch, cudaStream_t stream);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ferry::cuda
