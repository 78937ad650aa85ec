// SPDX-License-Identifier: Apache-2.0
// The formulas of src/backend/ops.h, literally.
#include "ops/reference.h"

#include <algorithm>
#include <cmath>

#include "backend/ops.h"

namespace ferry::test {

Values rmsnorm_reference(const Values& x, const Values& weight, double eps) {
  const std::size_t width = weight.size();
  Values y(x.size());
  for (std::size_t row = 0; row < x.size(); row += width) {
    double squares = 0;
    for (std::size_t c = 0; c < width; ++c) squares += x[row + c] * x[row + c];
    const double rstd = 1 / std::sqrt(squares / static_cast<double>(width) + eps);
    for (std::size_t c = 0; c < width; ++c) y[row + c] = x[row + c] * rstd * weight[c];
  }
  return y;
}

Values swiglu_reference(const Values& gate, const Values& up) {
  Values y(gate.size());
  for (std::size_t i = 0; i < y.size(); ++i) y[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
  return y;
}

namespace {

/// One query row: softmax over its scores, then the weighted sum of values.
void attention_row(const AttentionShape& s, const double* q, const double* k, const double* v, std::int64_t visible,
                   double* o, double* lse) {
  const std::int64_t stride = s.n_kv_heads * s.head_dim;
  Values score(visible);
  for (std::int64_t j = 0; j < visible; ++j) {
    for (std::int64_t d = 0; d < s.head_dim; ++d) score[j] += s.scale * q[d] * k[j * stride + d];
  }
  const double largest = *std::max_element(score.begin(), score.end());
  double sum = 0;
  for (const double x : score) sum += std::exp(x - largest);
  *lse = largest + std::log(sum);
  for (std::int64_t j = 0; j < visible; ++j) {
    for (std::int64_t d = 0; d < s.head_dim; ++d) o[d] += std::exp(score[j] - *lse) * v[j * stride + d];
  }
}

}  // namespace

AttentionOutput attention_reference(const AttentionShape& s, const Values& q, const Values& k, const Values& v) {
  AttentionOutput out;
  out.o.resize(q.size());
  out.lse.resize(s.batch * s.n_heads * s.length);
  for (std::int64_t b = 0; b < s.batch; ++b) {
    for (std::int64_t h = 0; h < s.n_heads; ++h) {
      const std::int64_t kv_head = h / (s.n_heads / s.n_kv_heads);
      const std::int64_t kv = (b * s.n_keys * s.n_kv_heads + kv_head) * s.head_dim;
      for (std::int64_t i = 0; i < s.length; ++i) {
        const std::int64_t row = ((b * s.length + i) * s.n_heads + h) * s.head_dim;
        attention_row(s, &q[row], &k[kv], &v[kv], i + 1 + s.n_keys - s.length, &out.o[row],
                      &out.lse[(b * s.n_heads + h) * s.length + i]);
      }
    }
  }
  return out;
}

double cross_entropy_reference(const Values& logits, const std::vector<std::int32_t>& targets) {
  const std::size_t width = logits.size() / targets.size();
  double total = 0;
  double n_valid = 0;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (targets[i] == kIgnoreIndex) continue;
    const double* row = &logits[i * width];
    const double largest = *std::max_element(row, row + width);
    double sum = 0;
    for (std::size_t c = 0; c < width; ++c) sum += std::exp(row[c] - largest);
    total += largest + std::log(sum) - row[targets[i]];
    n_valid += 1;
  }
  return total / n_valid;
}

Values product_reference(const ProductShape& s, const Values& a, const Values& b) {
  Values d(s.rows * s.columns);
  for (std::int64_t i = 0; i < s.rows; ++i) {
    for (std::int64_t k = 0; k < s.depth; ++k) {
      const double left = s.transpose_a ? a[k * s.rows + i] : a[i * s.depth + k];
      for (std::int64_t j = 0; j < s.columns; ++j) {
        d[i * s.columns + j] += left * (s.transpose_b ? b[j * s.depth + k] : b[k * s.columns + j]);
      }
    }
  }
  return d;
}

}  // namespace ferry::test
