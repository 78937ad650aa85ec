// SPDX-License-Identifier: Apache-2.0
// Plain f64 forward formulas of the ops that have a backward, one loop per index, on row-major values.
#pragma once

#include <cstdint>
#include <vector>

namespace ferry::test {

using Values = std::vector<double>;

/// y of (n / width, width); see RmsNormForward.
Values rmsnorm_reference(const Values& x, const Values& weight, double eps);

Values swiglu_reference(const Values& gate, const Values& up);

struct AttentionShape {
  std::int64_t batch;
  std::int64_t length;      // T
  std::int64_t n_keys;      // S
  std::int64_t n_heads;     // H
  std::int64_t n_kv_heads;  // G
  std::int64_t head_dim;    // D
  double scale;
};

struct AttentionOutput {
  Values o;    // (B, T, H, D)
  Values lse;  // (B, H, T)
};

AttentionOutput attention_reference(const AttentionShape& shape, const Values& q, const Values& k, const Values& v);

/// Mean over valid targets of the cross-entropy of (N, V) logits.
double cross_entropy_reference(const Values& logits, const std::vector<std::int32_t>& targets);

/// (M, N) = op(a) op(b)
struct ProductShape {
  std::int64_t rows;
  std::int64_t columns;
  std::int64_t depth;
  bool transpose_a;
  bool transpose_b;
};
Values product_reference(const ProductShape& shape, const Values& a, const Values& b);

}  // namespace ferry::test
