// SPDX-License-Identifier: Apache-2.0
// One matrix product as cuBLASLt sees it: what identifies it, its descriptors, and the algorithms proposed for it.
#pragma once

#include <cublasLt.h>

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda/cuda_raii.h"
#include "backend/ops.h"

namespace ferry::cuda {

/// Error{kDevice} with the call, the status and what to try; a pending CUDA error is named instead.
[[noreturn]] void throw_cublas_error(cublasStatus_t status, const char* call);

enum class Addend : std::uint8_t { kNone, kSeparate, kInPlace };

/// All that the choice of an algorithm may depend on; addresses only through their alignment, up to 16 bytes.
struct Product {
  explicit Product(const Matmul& op);

  auto operator<=>(const Product&) const = default;
  /// "bf16 f32 m64 n128 k32 nt ld32,32,128,128 + align16,16,16,16": printable, the same in every run.
  std::string describe() const;
  double flop() const { return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k); }

  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  std::array<std::int64_t, 4> row_stride{};  // of a, b, c, d; c's is d's without an addend
  std::array<int, 4> alignment{};            // bytes, of a, b, c, d
  DType in = DType::kF32;
  DType out = DType::kF32;
  bool transpose_a = false;
  bool transpose_b = false;
  Addend addend = Addend::kNone;
};

/// An algorithm and its name in files: "algo66 tile1 stages36 splitk1 reduction0 swizzle0 custom0 inner0 cluster2".
struct Candidate {
  cublasLtMatmulAlgo_t algo{};
  std::string name;
};

/// The arrays of one call, as in Matmul; c is d without an addend.
struct Operands {
  explicit Operands(const Matmul& op);

  const void* a = nullptr;
  const void* b = nullptr;
  const void* c = nullptr;
  void* d = nullptr;
};

/// The descriptors of a product. Rows are cuBLASLt's columns, so it computes the transpose: d^T = op(b)^T op(a)^T +
/// c^T.
class ProductDescriptors {
 public:
  /// Throws Error{kDevice}.
  explicit ProductDescriptors(const Product& product);

  /// Up to `max_count` algorithms, always in the same order, without repeated names: those that the library proposes,
  /// in its order, then others that it accepts, the nearest to them first. None where it refuses the product.
  std::vector<Candidate> candidates(cublasLtHandle_t handle, std::size_t workspace_bytes, std::size_t max_count) const;

  /// The algorithm of that name as `candidates` has it, without listing all; nullopt when it cannot run here.
  std::optional<Candidate> named(cublasLtHandle_t handle, std::size_t workspace_bytes, const std::string& name) const;

  cublasStatus_t run(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algo, const Operands& operands,
                     Scratch scratch, cudaStream_t stream) const;
  /// The same for an algorithm that may fail: false then, with no CUDA error left behind; d is not to be read.
  bool try_run(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algo, const Operands& operands, Scratch scratch,
               cudaStream_t stream) const;

 private:
  friend class CandidateSearch;
  using Layout = Owner<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;

  Product product_;
  float beta_;
  Owner<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy> operation_;
  Layout a_;
  Layout b_;
  Layout c_;
  Layout d_;
};

}  // namespace ferry::cuda

/// Every call of cuBLASLt goes through this, unless its status is looked at.
#define FERRY_CUBLAS_CHECK(call)                                                                        \
  do {                                                                                                  \
    if (const cublasStatus_t ferry_status = (call); ferry_status != CUBLAS_STATUS_SUCCESS) [[unlikely]] \
      ::ferry::cuda::throw_cublas_error(ferry_status, #call);                                           \
  } while (false)
