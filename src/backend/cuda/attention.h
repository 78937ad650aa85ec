// SPDX-License-Identifier: Apache-2.0
// Causal attention on the GPU: which of ferry's fused kernels, cuDNN and the plain kernels serves an op.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <string>

#include "backend/backend.h"
#include "backend/cuda/cudnn_attention.h"

namespace ferry::cuda {

/// The attention of one device; the calling thread has made it current. Any thread may call.
class Attention {
 public:
  /// Says in the log what will serve. Loads cuDNN at once where it is asked for by name, else when an op needs it.
  /// Throws Error{kConfig} where cuDNN is asked for by name and cannot be used.
  explicit Attention(AttentionChoice choice);

  /// "attention auto", "attention ferry", or "attention by cuDNN 9.14.0".
  std::string describe() const;

  /// Enough for any alignment of the data: depends on shapes, dtypes, strides and scale alone.
  std::size_t scratch_bytes(const AttentionForward& op);
  std::size_t scratch_bytes(const AttentionBackward& op);

  /// For people: "ferry's fused kernels, which take bf16 heads of 64 elements". Depends as scratch_bytes does.
  template <class Op>
  std::string what_serves(const Op& op);

  /// Enqueues a checked op; `scratch` has scratch_bytes(op), aligned to 16 bytes. Throws Error{kShape} before anything
  /// is enqueued for a head too wide, Error{kDevice}.
  void enqueue(const AttentionForward& op, Scratch scratch, cudaStream_t stream);
  void enqueue(const AttentionBackward& op, Scratch scratch, cudaStream_t stream);

 private:
  enum class Server { kFused, kCudnn, kPlain };

  template <class Op>
  Server server_of(const Op& op, void* scratch);
  template <class Op>
  std::string why_plain(const Op& op);
  template <class Op>
  void say_plain(const Op& op);
  CudnnAttention& cudnn();

  const AttentionChoice choice_;
  std::once_flag cudnn_once_;
  std::unique_ptr<CudnnAttention> cudnn_;  // made under cudnn_once_
  std::once_flag said_plain_;
};

}  // namespace ferry::cuda
