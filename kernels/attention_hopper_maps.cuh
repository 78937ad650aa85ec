// SPDX-License-Identifier: Apache-2.0
// Host side of the tensor copy engine: the maps through which kernels see strided rows of heads.
// Source: CUDA driver API, cuTensorMapEncodeTiled.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "kernels/attention_tiles.cuh"

namespace ferry::kernels::attention {

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

/// The driver's encoder, without linking the driver; null where there is none.
inline EncodeTiled encode_tiled() {
  static const EncodeTiled encode = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found);
#else
    const cudaError_t error = cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &entry, cudaEnableDefault, &found);
#endif
    const bool usable = error == cudaSuccess && found == cudaDriverEntryPointSuccess;
    return usable ? reinterpret_cast<EncodeTiled>(entry) : nullptr;
  }();
  return encode;
}

/// What a map covers: (batch, n_rows, n_heads, width), in boxes of box_rows rows and 64 columns of one head.
struct MapShape {
  std::int64_t batch;
  std::int64_t n_rows;
  std::int64_t n_heads;
  std::int64_t width;
  int box_rows;
};

inline cudaError_t make_map(CUtensorMap* map, const HeadRows& x, const MapShape& shape) {
  if (encode_tiled() == nullptr) return cudaErrorNotSupported;
  constexpr std::int64_t kElementBytes = 2;
  // The stride of a dimension of one element is never used, but has to be a valid one.
  const auto stride_bytes = [](std::int64_t extent, std::int64_t stride) {
    return static_cast<cuuint64_t>(extent > 1 ? stride * kElementBytes : 16);
  };
  const cuuint64_t extents[4] = {static_cast<cuuint64_t>(shape.width), static_cast<cuuint64_t>(shape.n_heads),
                                 static_cast<cuuint64_t>(shape.n_rows), static_cast<cuuint64_t>(shape.batch)};
  const cuuint64_t strides[3] = {stride_bytes(shape.n_heads, x.head_stride), stride_bytes(shape.n_rows, x.row_stride),
                                 stride_bytes(shape.batch, x.batch_stride)};
  const cuuint32_t box[4] = {kBlockColumns, 1, static_cast<cuuint32_t>(shape.box_rows), 1};
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  const CUresult result = encode_tiled()(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, x.data, extents, strides, box, steps,
                                         CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                         CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

/// Every map of a launch, or the first error.
class Maps {
 public:
  Maps& add(CUtensorMap* map, const HeadRows& x, const MapShape& shape) {
    if (error_ == cudaSuccess) error_ = make_map(map, x, shape);
    return *this;
  }
  cudaError_t error() const { return error_; }

 private:
  cudaError_t error_ = cudaSuccess;
};

inline int n_multiprocessors() {
  int device = 0, count = 1;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
  return count;
}

}  // namespace ferry::kernels::attention
