// SPDX-License-Identifier: Apache-2.0
// An algorithm of cuBLASLt by its attributes: its name, its capabilities, and whether it obeys the rules on bits.
#pragma once

#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/cuda/cublaslt_plan.h"
#include "core/error.h"

namespace ferry::cuda {

inline cudaDataType_t data_type(DType dtype) { return dtype == DType::kBf16 ? CUDA_R_16BF : CUDA_R_32F; }

using Algo = cublasLtMatmulAlgo_t;
using Attribute = cublasLtMatmulAlgoConfigAttributes_t;

inline constexpr Attribute kTile = CUBLASLT_ALGO_CONFIG_TILE_ID;
inline constexpr Attribute kCluster = CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID;

/// The values of an algorithm's attributes, by attribute: what its name says.
using AlgoConfig = std::array<std::uint32_t, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID + 1>;

inline constexpr std::pair<std::string_view, Attribute> kNameParts[] = {
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
static_assert(std::size(kNameParts) == std::tuple_size_v<AlgoConfig>);

inline std::size_t size_bytes(Attribute attribute) {
  const bool is_short =
      attribute == CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID || attribute == CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID;
  return is_short ? 2 : 4;
}

/// Attributes of two bytes are read into zeros and written from the low bytes: little-endian, either is right.
inline AlgoConfig config_of(const Algo& algo) {
  AlgoConfig config{};
  for (const auto& [label, attribute] : kNameParts) {
    FERRY_CUBLAS_CHECK(
        cublasLtMatmulAlgoConfigGetAttribute(&algo, attribute, &config[attribute], size_bytes(attribute), nullptr));
  }
  return config;
}

inline std::string name_of(const AlgoConfig& config) {
  std::string name;
  for (const auto& [label, attribute] : kNameParts) {
    name += fmt::format("{}{}{}", name.empty() ? "" : " ", label, config[attribute]);
  }
  return name;
}

/// nullopt unless `name` is one of name_of.
inline std::optional<AlgoConfig> parse_name(const std::string& name) {
  AlgoConfig config{};
  std::string_view rest = name;
  for (const auto& [label, attribute] : kNameParts) {
    if (rest.substr(0, label.size()) != label) return std::nullopt;
    rest.remove_prefix(label.size());
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), config[attribute]);
    if (error != std::errc()) return std::nullopt;
    rest.remove_prefix(static_cast<std::size_t>(end - rest.data()));
    rest.remove_prefix(std::min<std::size_t>(rest.size(), 1));
  }
  return name_of(config) == name ? std::optional(config) : std::nullopt;
}

/// The number of parts of k brings the way to sum them along.
inline AlgoConfig with(AlgoConfig config, Attribute attribute, std::uint32_t value) {
  config[attribute] = value;
  if (attribute == CUBLASLT_ALGO_CONFIG_SPLITK_NUM) {
    config[CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME] =
        value > 1 ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE : CUBLASLT_REDUCTION_SCHEME_NONE;
  }
  return config;
}

/// 0 where the algorithm does not know the capability.
template <class Value>
Value capability(const Algo& algo, cublasLtMatmulAlgoCapAttributes_t attribute) {
  Value value = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoCapGetAttribute(&algo, attribute, &value, sizeof value, nullptr);
  return status == CUBLAS_STATUS_SUCCESS ? value : 0;
}

inline std::vector<std::uint32_t> below(std::uint32_t end) {
  std::vector<std::uint32_t> values(end);
  std::iota(values.begin(), values.end(), 0U);
  return values;
}

/// The ids that the algorithm lists; all below `end` where it lists none.
inline std::vector<std::uint32_t> listed_ids(const Algo& algo, cublasLtMatmulAlgoCapAttributes_t attribute,
                                             std::uint32_t end) {
  std::vector<std::uint32_t> ids(end);
  std::size_t written_bytes = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoCapGetAttribute(&algo, attribute, ids.data(), ids.size() * sizeof ids[0], &written_bytes);
  ids.resize(status == CUBLAS_STATUS_SUCCESS ? written_bytes / sizeof ids[0] : 0);
  return ids.empty() ? below(end) : ids;
}

/// Sums in f32 of inputs as they are.
inline bool keeps_precision(const Algo& algo, DType in) {
  const auto flags = capability<std::uint64_t>(algo, CUBLASLT_ALGO_CAP_NUMERICAL_IMPL_FLAGS);
  constexpr std::uint64_t kCoarse = CUBLASLT_NUMERICAL_IMPL_FLAGS_ACCUMULATOR_16F |
                                    CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_8F_E4M3 |
                                    CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_8F_E5M2;
  constexpr std::uint64_t kCoarseF32 = CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_TF32 |
                                       CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_16F |
                                       CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_16BF;
  return (flags & (in == DType::kF32 ? kCoarse | kCoarseF32 : kCoarse)) == 0;
}

/// For the product's addresses and rows.
inline bool is_aligned(const Algo& algo, const Product& product) {
  constexpr cublasLtMatmulAlgoCapAttributes_t kMinima[] = {
      CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_B_BYTES, CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_A_BYTES,  // the first operand is b
      CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_C_BYTES, CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_D_BYTES};
  for (std::size_t i = 0; i < std::size(kMinima); ++i) {
    const std::int64_t min_bytes = std::max(capability<std::uint32_t>(algo, kMinima[i]), 1U);
    const std::size_t elem_bytes = size_of(i < 2 ? product.in : product.out);
    const std::int64_t stride_bytes = product.row_stride[i] * static_cast<std::int64_t>(elem_bytes);
    if (product.alignment[i] % min_bytes != 0 || stride_bytes % min_bytes != 0) return false;
  }
  return true;
}

/// Algorithm `id` with no attribute set; nullopt where it does not suit the product.
inline std::optional<Algo> unset_algo(cublasLtHandle_t handle, const Product& product, int id) {
  Algo algo{};
  const cudaDataType_t in = data_type(product.in);
  const cudaDataType_t out = data_type(product.out);
  const cublasStatus_t status =
      cublasLtMatmulAlgoInit(handle, CUBLAS_COMPUTE_32F, CUDA_R_32F, in, in, out, out, id, &algo);
  const bool suits = status == CUBLAS_STATUS_SUCCESS && keeps_precision(algo, product.in) && is_aligned(algo, product);
  return suits ? std::optional(algo) : std::nullopt;
}

/// Sums of a split k stay in f32.
inline bool keeps_sums(const AlgoConfig& config) {
  const std::uint32_t scheme = config[CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME];
  if (scheme == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) return true;
  return scheme == CUBLASLT_REDUCTION_SCHEME_NONE && config[CUBLASLT_ALGO_CONFIG_SPLITK_NUM] <= 1;
}

}  // namespace ferry::cuda
