// SPDX-License-Identifier: Apache-2.0
// Matrix products through cuBLASLt: the algorithm of each product is chosen once, by time, and kept.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>

#include "backend/backend.h"
#include "backend/cuda/workspace.h"

namespace ferry::cuda {

/// The products of one device. Any thread may call; calls hold a mutex, the work runs on the caller's stream.
///
/// Bits: bf16 accumulates in f32, f32 is true f32 (no TF32); split sums are kept in f32, so the output is rounded once.
/// They depend on the product (extents, strides, types, whether rows are 16-byte aligned) and on its algorithm.
/// Algorithm: products below kTimedFlop take the library's first proposal. Others are timed at their first call, on its
/// stream and operands: kCandidates algorithms, the library's proposals and others near them
/// (ProductDescriptors::candidates); that call blocks. The choice goes to a file (MatmulChoices), and where the file
/// knows one, nothing is timed. Products that cuBLASLt refuses (rows of odd alignment) run on a plain kernel.
class CublasLtMatmul {
 public:
  static constexpr std::size_t kWorkspaceBytes = kMatmulWorkspaceBytes;
  /// cuBLASLt 13.1 proposes 2 to 8 on an H200.
  static constexpr std::size_t kCandidates = 32;
  /// 1 to 3 us of a large GPU: below, launches dominate and times say nothing.
  static constexpr double kTimedFlop = 1 << 30;

  /// Uses the current device. `device` names its kind, "NVIDIA H200 9.0 132"; `choices_file` may be empty. Throws
  /// Error{kDevice}.
  CublasLtMatmul(const std::string& device, std::filesystem::path choices_file);
  ~CublasLtMatmul();
  CublasLtMatmul(const CublasLtMatmul&) = delete;
  CublasLtMatmul& operator=(const CublasLtMatmul&) = delete;

  /// Enqueues a checked op (check_op); `scratch` has kWorkspaceBytes. Throws Error{kDevice}.
  void enqueue(const Matmul& op, Scratch scratch, cudaStream_t stream);

  /// How often products were timed so far.
  int n_timed() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ferry::cuda
