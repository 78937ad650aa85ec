// SPDX-License-Identifier: Apache-2.0
// RMSNorm forward and backward by rows.
// Source: Zhang & Sennrich 2019, arXiv:1910.07467, eq. 4 and its derivative.
#include "backend/cpu/kernels/lanes.h"

namespace ferry::cpu::FERRY_ISA {
namespace {

// Results go through a block even where a plain loop would do: it keeps loops vectorised when input and output alias.

/// sum[i] = round(x[i] + addend[i])
template <class T>
void add_row(T* sum, const T* x, const T* addend, std::int64_t n) {
  Block out;
  for (std::int64_t i = 0; i < n; i += kBlock) {
    const std::int64_t count = smaller(kBlock, n - i);
    for (std::int64_t j = 0; j < count; ++j) out.values[j] = to_float(x[i + j]) + to_float(addend[i + j]);
    store(sum + i, out.values, count);
  }
}

/// y[i] = x[i] * rstd * weight[i]
template <class T>
void scale_row(T* y, const T* x, const T* weight, float rstd, std::int64_t n) {
  Block out;
  for (std::int64_t i = 0; i < n; i += kBlock) {
    const std::int64_t count = smaller(kBlock, n - i);
    for (std::int64_t j = 0; j < count; ++j) out.values[j] = to_float(x[i + j]) * rstd * to_float(weight[i + j]);
    store(y + i, out.values, count);
  }
}

/// Sum over i of a[i] * b[i], each row loaded block by block.
template <class T>
float dot_row(const T* a, const T* b, std::int64_t n) {
  Block left;
  Block right;
  float total = 0;
  for (std::int64_t i = 0; i < n; i += kBlock) {
    const std::int64_t count = smaller(kBlock, n - i);
    load_padded(left.values, a + i, count, 0);
    load_padded(right.values, b + i, count, 0);
    total += dot_lanes(left.values, right.values, round_up(count));
  }
  return total;
}

template <class T>
void forward(const RmsNormForward& op, Range rows) {
  const std::int64_t width = op.x.shape[1];
  const T* const weight = at<const T>(op.weight);
  for (std::int64_t r = rows.begin; r < rows.end; ++r) {
    const T* s = at<const T>(op.x, r * width);
    if (op.sum.data != nullptr) {
      T* const sum = at<T>(op.sum, r * width);
      add_row(sum, s, at<const T>(op.addend, r * width), width);
      s = sum;
    }
    const float rstd = 1.0F / __builtin_sqrtf(dot_row(s, s, width) / static_cast<float>(width) + op.eps);
    at<float>(op.rstd)[r] = rstd;
    scale_row(at<T>(op.y, r * width), s, weight, rstd, width);
  }
}

/// Sum over c of d_y * weight * x of one row.
template <class T>
float projection(const T* d_y, const T* weight, const T* x, std::int64_t n) {
  Block product;
  Block other;
  float total = 0;
  for (std::int64_t i = 0; i < n; i += kBlock) {
    const std::int64_t count = smaller(kBlock, n - i);
    load_padded(product.values, d_y + i, count, 0);
    load_padded(other.values, weight + i, count, 0);
    for (std::int64_t j = 0; j < round_up(count); ++j) product.values[j] *= other.values[j];
    load_padded(other.values, x + i, count, 0);
    total += dot_lanes(product.values, other.values, round_up(count));
  }
  return total;
}

/// d_x of one row; adds the row's d_weight to `partial`.
template <class T>
void backward_row(const RmsNormBackward& op, std::int64_t row, float* __restrict partial) {
  const std::int64_t width = op.x.shape[1];
  const T* const d_y = at<const T>(op.d_y, row * width);
  const T* const x = at<const T>(op.x, row * width);
  const T* const weight = at<const T>(op.weight);
  const T* const d_residual = op.d_residual.data != nullptr ? at<const T>(op.d_residual, row * width) : nullptr;
  T* const d_x = at<T>(op.d_x, row * width);
  const float rstd = at<const float>(op.rstd)[row];
  const float mean = projection(d_y, weight, x, width) * rstd / static_cast<float>(width);
  Block gradient;
  for (std::int64_t begin = 0; begin < width; begin += kBlock) {
    const std::int64_t count = smaller(kBlock, width - begin);
    float* __restrict out = gradient.values;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t c = begin + i;
      const float upstream = to_float(d_y[c]);
      const float normed = to_float(x[c]) * rstd;
      out[i] = rstd * (upstream * to_float(weight[c]) - normed * mean);
      partial[c] += upstream * normed;
    }
    if (d_residual != nullptr) {
      for (std::int64_t i = 0; i < count; ++i) out[i] += to_float(d_residual[begin + i]);
    }
    store(d_x + begin, out, count);
  }
}

}  // namespace

void rmsnorm_forward(const RmsNormForward& op, Range rows) {
  with_type(op.x.dtype, [&](auto type) { forward<decltype(type)>(op, rows); });
}

void rmsnorm_backward(const RmsNormBackward& op, Range rows, float* partial) {
  for (std::int64_t c = 0; c < op.x.shape[1]; ++c) partial[c] = 0;
  with_type(op.x.dtype, [&](auto type) {
    for (std::int64_t r = rows.begin; r < rows.end; ++r) backward_row<decltype(type)>(op, r, partial);
  });
}

void rmsnorm_d_weight(const RmsNormBackward& op, const float* partials, std::int64_t n_partials, Range columns) {
  const std::int64_t width = op.x.shape[1];
  Block total;
  for (std::int64_t begin = columns.begin; begin < columns.end; begin += kBlock) {
    const std::int64_t count = smaller(kBlock, columns.end - begin);
    for (float& value : total.values) value = 0;
    for (std::int64_t p = 0; p < n_partials; ++p) {
      const float* const part = partials + p * width + begin;
      for (std::int64_t i = 0; i < count; ++i) total.values[i] += part[i];
    }
    if (op.accumulate) {
      const float* const before = at<const float>(op.d_weight, begin);
      for (std::int64_t i = 0; i < count; ++i) total.values[i] += before[i];
    }
    with_type(op.d_weight.dtype,
              [&](auto type) { store(at<decltype(type)>(op.d_weight, begin), total.values, count); });
  }
}

}  // namespace ferry::cpu::FERRY_ISA
