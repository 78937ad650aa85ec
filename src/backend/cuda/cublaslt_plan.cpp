// SPDX-License-Identifier: Apache-2.0
// cuBLASLt's objects for row-major products.
#include "backend/cuda/cublaslt_plan.h"

#include <algorithm>
#include <bit>
#include <string_view>
#include <utility>

#include "core/error.h"

namespace ferry::cuda {
namespace {

// No kernel loads more at once; a larger alignment would make the choice depend on where the arena put a tensor.
constexpr std::uintptr_t kMaxAlignment = 16;

cudaDataType_t data_type(DType dtype) { return dtype == DType::kBf16 ? CUDA_R_16BF : CUDA_R_32F; }

/// A single row has no stride that matters.
std::int64_t row_stride_of(const TensorView& view) { return view.shape[0] == 1 ? view.shape[1] : view.stride[0]; }

int alignment_of(const void* data) {
  const std::uintptr_t bits = reinterpret_cast<std::uintptr_t>(data) | kMaxAlignment;
  return 1 << std::countr_zero(bits);
}

template <class Value>
void set(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute, Value value) {
  FERRY_CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof value));
}

template <class Value>
void set(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute, Value value) {
  FERRY_CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value));
}

/// The attributes have types of two and four bytes: read into zeros, little-endian, either is right.
std::uint32_t get(const cublasLtMatmulAlgo_t& algo, cublasLtMatmulAlgoConfigAttributes_t attribute) {
  std::uint32_t value = 0;
  const bool is_short =
      attribute == CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID || attribute == CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID;
  FERRY_CUBLAS_CHECK(cublasLtMatmulAlgoConfigGetAttribute(&algo, attribute, &value, is_short ? 2 : 4, nullptr));
  return value;
}

std::string name_of(const cublasLtMatmulAlgo_t& algo) {
  constexpr std::pair<const char*, cublasLtMatmulAlgoConfigAttributes_t> kParts[] = {
      {"algo", CUBLASLT_ALGO_CONFIG_ID},
      {"tile", CUBLASLT_ALGO_CONFIG_TILE_ID},
      {"stages", CUBLASLT_ALGO_CONFIG_STAGES_ID},
      {"splitk", CUBLASLT_ALGO_CONFIG_SPLITK_NUM},
      {"reduction", CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME},
      {"swizzle", CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING},
      {"custom", CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION},
      {"inner", CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID},
      {"cluster", CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID},
  };
  std::string name;
  for (const auto& [label, attribute] : kParts) {
    name += fmt::format("{}{}{}", name.empty() ? "" : " ", label, get(algo, attribute));
  }
  return name;
}

}  // namespace

void throw_cublas_error(cublasStatus_t status, const char* call) {
  const std::string_view text(call);
  const std::string name(text.substr(0, text.find('(')));
  if (const cudaError_t pending = cudaGetLastError(); pending != cudaSuccess) throw_cuda_error(pending, name.c_str());
  const bool is_memory = status == CUBLAS_STATUS_ALLOC_FAILED || status == CUBLAS_STATUS_NOT_INITIALIZED;
  ferry::detail::throw_error(
      ErrorKind::kDevice,
      fmt::format("{}: {}: {}", name, cublasLtGetStatusName(status),
                  is_memory ? "the GPU's memory may be full: end other programs that use it (nvidia-smi lists them)"
                            : "set FERRY_SYNC_LAUNCHES=1 to learn which op fails; CUBLASLT_LOG_LEVEL=2 makes the "
                              "library say more"));
}

Product::Product(const Matmul& op)
    : m(op.d.shape[0]),
      n(op.d.shape[1]),
      k(op.a.shape[op.transpose_a ? 0 : 1]),
      in(op.a.dtype),
      out(op.d.dtype),
      transpose_a(op.transpose_a),
      transpose_b(op.transpose_b) {
  if (op.c) addend = op.c.data == op.d.data ? Addend::kInPlace : Addend::kSeparate;
  const TensorView* const views[] = {&op.a, &op.b, op.c ? &op.c : &op.d, &op.d};
  for (std::size_t i = 0; i < std::size(views); ++i) {
    row_stride[i] = row_stride_of(*views[i]);
    alignment[i] = alignment_of(views[i]->data);
  }
}

std::string Product::describe() const {
  return fmt::format("{} {} m{} n{} k{} {}{} ld{},{},{},{} {} align{},{},{},{}", to_string(in), to_string(out), m, n, k,
                     transpose_a ? 't' : 'n', transpose_b ? 't' : 'n', row_stride[0], row_stride[1], row_stride[2],
                     row_stride[3],
                     addend == Addend::kNone       ? "="
                     : addend == Addend::kSeparate ? "+"
                                                   : "+=",
                     alignment[0], alignment[1], alignment[2], alignment[3]);
}

Operands::Operands(const Matmul& op) : a(op.a.data), b(op.b.data), c(op.c ? op.c.data : op.d.data), d(op.d.data) {}

ProductDescriptors::ProductDescriptors(const Product& product)
    : alignment_(product.alignment), beta_(product.addend == Addend::kNone ? 0.0F : 1.0F) {
  FERRY_CUBLAS_CHECK(cublasLtMatmulDescCreate(operation_.receive(), CUBLAS_COMPUTE_32F, CUDA_R_32F));
  // The first operand of the transposed product is b.
  set(operation_.get(), CUBLASLT_MATMUL_DESC_TRANSA, product.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(operation_.get(), CUBLASLT_MATMUL_DESC_TRANSB, product.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  const auto create = [&product](Layout& layout, DType dtype, bool transposed, std::int64_t rows, std::int64_t columns,
                                 std::size_t operand) {
    if (transposed) std::swap(rows, columns);
    FERRY_CUBLAS_CHECK(cublasLtMatrixLayoutCreate(layout.receive(), data_type(dtype),
                                                  static_cast<std::uint64_t>(columns), static_cast<std::uint64_t>(rows),
                                                  product.row_stride[operand]));
  };
  create(a_, product.in, product.transpose_a, product.m, product.k, 0);
  create(b_, product.in, product.transpose_b, product.k, product.n, 1);
  create(c_, product.out, false, product.m, product.n, 2);
  create(d_, product.out, false, product.m, product.n, 3);
}

std::vector<Candidate> ProductDescriptors::candidates(cublasLtHandle_t handle, std::size_t workspace_bytes,
                                                      int max_count) const {
  Owner<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy> preference;
  FERRY_CUBLAS_CHECK(cublasLtMatmulPreferenceCreate(preference.receive()));
  set(preference.get(), CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes);
  // Partial sums of a split k stay in f32: in the output's type they would be rounded more than once.
  set(preference.get(), CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  constexpr std::pair<cublasLtMatmulPreferenceAttributes_t, std::size_t> kAlignments[] = {
      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, 1},  // the first operand is b
      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, 0},
      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, 2},
      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, 3},
  };
  for (const auto& [attribute, operand] : kAlignments) {
    set(preference.get(), attribute, static_cast<std::uint32_t>(alignment_[operand]));
  }

  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<std::size_t>(max_count));
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle, operation_.get(), b_.get(), a_.get(), c_.get(), d_.get(), preference.get(),
                                     max_count, results.data(), &count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) return {};
  FERRY_CUBLAS_CHECK(status);
  results.resize(static_cast<std::size_t>(count));

  std::vector<Candidate> candidates;
  for (const cublasLtMatmulHeuristicResult_t& result : results) {
    if (result.state != CUBLAS_STATUS_SUCCESS || result.workspaceSize > workspace_bytes) continue;
    Candidate candidate{result.algo, name_of(result.algo)};
    const auto same_name = [&candidate](const Candidate& other) { return other.name == candidate.name; };
    if (std::none_of(candidates.begin(), candidates.end(), same_name)) candidates.push_back(std::move(candidate));
  }
  return candidates;
}

cublasStatus_t ProductDescriptors::run(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algo,
                                       const Operands& operands, void* workspace, std::size_t workspace_bytes,
                                       cudaStream_t stream) const {
  const float alpha = 1;
  return cublasLtMatmul(handle, operation_.get(), &alpha, operands.b, b_.get(), operands.a, a_.get(), &beta_,
                        operands.c, c_.get(), operands.d, d_.get(), &algo, workspace, workspace_bytes, stream);
}

}  // namespace ferry::cuda
