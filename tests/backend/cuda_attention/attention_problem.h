// SPDX-License-Identifier: Apache-2.0
// One attention problem in one block of memory, laid out as the model does: q, k, v and their gradients are views of
// fused buffers. Every buffer has one head too many, so that a write beyond a view shows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "backend/ops.h"

namespace ferry::test {

using Bytes = std::vector<std::byte>;

class AttentionProblem {
 public:
  struct Shape {
    DType dtype;
    std::int64_t batch;
    std::int64_t n_queries;
    std::int64_t n_keys;
    std::int64_t n_heads;
    std::int64_t n_kv_heads;
    std::int64_t width;
  };

  explicit AttentionProblem(const Shape& shape);

  std::string describe() const;
  std::size_t size_bytes() const { return size_bytes_; }

  /// Ops whose tensors lie in a copy of the block at `base`, aligned to 256 bytes.
  AttentionForward forward(void* base) const;
  AttentionBackward backward(void* base) const;

  /// Values in [-2, 2) in every input of both passes; NaN everywhere else.
  Bytes random_inputs(std::uint64_t seed) const;

 private:
  Shape shape_;
  std::size_t qkv_offset_ = 0;
  std::size_t o_offset_ = 0;
  std::size_t d_o_offset_ = 0;
  std::size_t d_qkv_offset_ = 0;
  std::size_t lse_offset_ = 0;
  std::size_t size_bytes_ = 0;
};

/// Widths and lengths of every kind, grouped heads, cached keys, both dtypes; small enough for the CPU.
std::vector<AttentionProblem::Shape> attention_shapes();

/// How far an output may lie from the reference: |got - want| <= relative * |want| + of_largest * max(1, |want|), the
/// inputs being of order 1, and in the mean square by `of_mean` of the reference.
struct AttentionTolerance {
  double relative;
  double of_largest;
  double of_mean;
};

/// "" when `got` and `want`, both at the same place of their blocks, agree; else name, index, got, want.
std::string difference(const char* name, const TensorView& got, const TensorView& want,
                       const AttentionTolerance& tolerance);

/// Sets every byte of the view's elements to that of NaN.
void poison(const TensorView& view);

}  // namespace ferry::test
