// SPDX-License-Identifier: Apache-2.0
// The one checked way to launch a kernel, and what launchers decide on the host: types, alignment, grids.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "kernels/launch.h"

namespace ferry::kernels {

/// One dimension of blocks, one of threads; `shared_bytes` of dynamic shared memory.
struct LaunchShape {
  std::int64_t blocks = 0;
  int threads = 0;
  std::size_t shared_bytes = 0;
};

inline constexpr std::int64_t kMaxBlocks = 0x7fffffff;

template <class... Params, class... Args>
[[nodiscard]] cudaError_t launch(void (*kernel)(Params...), const LaunchShape& shape, cudaStream_t stream,
                                 Args&&... args) {
  if (shape.blocks == 0) return cudaSuccess;
  if (shape.blocks > kMaxBlocks) return cudaErrorInvalidConfiguration;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(shape.blocks));
  config.blockDim = dim3(static_cast<unsigned>(shape.threads));
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...);
}

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
constexpr std::int64_t round_up(std::int64_t n, std::int64_t unit) { return ceil_div(n, unit) * unit; }

inline constexpr int kPackBytes = 16;

constexpr std::int64_t size_of(Type type) { return type == Type::kF32 ? 4 : 2; }
constexpr std::int64_t pack_elems(Type type) { return kPackBytes / size_of(type); }

inline bool is_aligned(const void* data) { return reinterpret_cast<std::uintptr_t>(data) % kPackBytes == 0; }

/// Rows of `width` elements: whether they can be read in whole packs.
struct RowCheck {
  std::int64_t n_rows = 0;
  std::int64_t width = 0;
  Type type = Type::kF32;

  bool whole_packs() const { return width % pack_elems(type) == 0; }
  /// Whether each row begins on a multiple of 16 bytes. A null pointer does.
  bool aligned(const void* data, std::int64_t stride) const {
    return is_aligned(data) && (n_rows <= 1 || stride % pack_elems(type) == 0);
  }
  bool aligned(const void* data) const { return aligned(data, width); }
  bool aligned(const Rows& rows) const { return aligned(rows.data, rows.stride); }
  bool aligned(const ConstRows& rows) const { return aligned(rows.data, rows.stride); }
};

/// fn.operator()<T, kVector>() for the element type; kVector: 16 bytes are read at a time.
template <class Fn>
cudaError_t with_type(Type type, bool is_vector, Fn&& fn) {
  if (type == Type::kF32) {
    return is_vector ? fn.template operator()<float, true>() : fn.template operator()<float, false>();
  }
  return is_vector ? fn.template operator()<__nv_bfloat16, true>() : fn.template operator()<__nv_bfloat16, false>();
}

}  // namespace ferry::kernels
