// SPDX-License-Identifier: Apache-2.0
// The ops of the CUDA backend: from views to the launchers of kernels/, cuBLASLt and cuDNN.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <filesystem>
#include <string>

#include "backend/backend.h"
#include "backend/cuda/attention.h"
#include "backend/cuda/cublaslt_matmul.h"

namespace ferry::cuda {

/// The ops of one device; the calling thread has made it current. Any thread may call.
class CudaOps {
 public:
  /// As CublasLtMatmul and Attention.
  CudaOps(const std::string& device, std::filesystem::path choices_file, AttentionChoice attention);

  /// Depends on shapes, dtypes and strides alone.
  std::size_t scratch_bytes(const Op& op);
  std::string what_serves(const Op& op);

  /// Enqueues an op that check_op has accepted; `scratch` holds scratch_bytes(op), aligned to Buffer::kAlignment.
  /// Throws Error{kShape} before anything is enqueued for an attention head too wide, Error{kDevice}.
  void enqueue(cudaStream_t stream, const Op& op, Scratch scratch);

  const Attention& attention() const { return attention_; }

 private:
  CublasLtMatmul matmul_;
  Attention attention_;
};

}  // namespace ferry::cuda
