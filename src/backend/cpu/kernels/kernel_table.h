// SPDX-License-Identifier: Apache-2.0
// Single-threaded pieces of the CPU ops, compiled once per instruction set. op_table.cpp cuts the ops into such pieces.
//
// A piece gets the whole op, already checked, and the part of it to do. Pieces of one op may run at the same time. They
// allocate nothing; `workspace` belongs to the calling thread and is aligned to 64 bytes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/ops.h"
#include "core/simd.h"

namespace ferry::cpu {

/// A rectangle of a matrix product's result.
struct MatmulTile {
  std::int64_t row = 0;
  std::int64_t n_rows = 0;  // <= kMaxTileRows
  std::int64_t column = 0;
  std::int64_t n_columns = 0;  // <= kMaxTileColumns
};

/// Query rows [begin, begin + count) of one head.
struct QueryTile {
  std::int64_t batch = 0;
  std::int64_t head = 0;
  std::int64_t begin = 0;
  std::int64_t count = 0;  // <= kQueryTile
};

/// Elements or rows [begin, end).
struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

// Tile sizes. 256 x 384 with depth 512 keeps the f32 panels of a bf16 product (1.7 MB with the accumulator) near a 2 MB
// L2 and costs about 5 % in conversions; 384 is a multiple of every register tile (AVX-512: 48, AVX2: 24, SSE: 12).
inline constexpr std::int64_t kMaxTileRows = 256;
inline constexpr std::int64_t kMaxTileColumns = 384;
inline constexpr std::int64_t kMatmulDepth = 512;
inline constexpr std::int64_t kQueryTile = 64;
inline constexpr std::int64_t kKeyBlock = 512;

constexpr std::int64_t matmul_workspace_elems() {
  return kMatmulDepth * (kMaxTileRows + kMaxTileColumns) + kMaxTileRows * kMaxTileColumns;
}
/// Backward's needs, which cover forward's: three query tiles, two key blocks, two score tiles, and room to align.
constexpr std::int64_t attention_workspace_elems(std::int64_t head_dim) {
  return (3 * kQueryTile + 2 * kKeyBlock) * head_dim + 2 * kQueryTile * kKeyBlock + 8 * 16;
}

struct KernelTable {
  void (*matmul)(const Matmul& op, const MatmulTile& tile, float* workspace);

  void (*attention_forward)(const AttentionForward& op, const QueryTile& tile, float* workspace);
  /// One key/value head of one batch. sum_d_k, sum_d_v: (S, D) f32, contents undefined before and after.
  void (*attention_backward)(const AttentionBackward& op, std::int64_t batch, std::int64_t kv_head, float* sum_d_k,
                             float* sum_d_v, float* workspace);

  void (*rmsnorm_forward)(const RmsNormForward& op, Range rows);
  /// d_x of these rows, and their part of d_weight in `partial` (C).
  void (*rmsnorm_backward)(const RmsNormBackward& op, Range rows, float* partial);
  /// d_weight[columns] = the sum of n_partials rows of (n_partials, C), in order; added to what it holds where the op
  /// accumulates.
  void (*rmsnorm_d_weight)(const RmsNormBackward& op, const float* partials, std::int64_t n_partials, Range columns);

  void (*rope)(const Rope& op, Range rows);  // rows of (B * T)
  void (*swiglu_forward)(const SwigluForward& op, Range rows);
  void (*swiglu_backward)(const SwigluBackward& op, Range rows);
  void (*cross_entropy_chunk)(const CrossEntropyChunk& op, Range rows);
  void (*cross_entropy_loss)(const CrossEntropyLoss& op);
  void (*cross_entropy_backward)(const CrossEntropyBackward& op, Range rows);
  void (*cast)(const Cast& op, Range elems);
  float (*sum_of_squares)(const SumOfSquares& op, Range elems);
  float (*sum)(const float* x, std::int64_t n);

  /// What `ferry bench ops` compares with: one Eigen product of f32 maps, rows of d only. No c.
  void (*plain_product)(const Matmul& op, Range rows);
};

namespace scalar {
extern const KernelTable kKernels;
}
namespace avx2 {
extern const KernelTable kKernels;
}
namespace avx512 {
extern const KernelTable kKernels;
}

/// The table of `level`.
const KernelTable& kernels(SimdLevel level);

}  // namespace ferry::cpu
