// SPDX-License-Identifier: Apache-2.0
// Ops that treat each element alone: RoPE, SwiGLU, casts; and the block sums of the gradient norm.
// Source: arXiv:2104.09864 (RoPE), arXiv:2002.05202 (SwiGLU).
#include "backend/cpu/kernels/lanes.h"

namespace ferry::cpu::FERRY_ISA {
namespace {

/// Rotates one head: `low` and `high` are its halves.
template <class T>
void rotate(T* __restrict low, T* __restrict high, const float* __restrict cos, const float* __restrict sin, float sign,
            std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    const float a = to_float(low[i]);
    const float b = to_float(high[i]);
    const float s = sign * sin[i];
    low[i] = from_float<T>(a * cos[i] - b * s);
    high[i] = from_float<T>(b * cos[i] + a * s);
  }
}

template <class T>
void rope_rows(const Rope& op, Range rows) {
  const std::int64_t length = op.x.shape[1];
  const std::int64_t half = op.x.shape[3] / 2;
  const float sign = op.inverse ? -1.0F : 1.0F;
  for (std::int64_t r = rows.begin; r < rows.end; ++r) {
    const std::int64_t t = r % length;
    const float* const cos = at<const float>(op.cos, t * half);
    const float* const sin = at<const float>(op.sin, t * half);
    T* const row = at<T>(op.x, r / length * op.x.stride[0] + t * op.x.stride[1]);
    for (std::int64_t h = 0; h < op.x.shape[2]; ++h) {
      T* const head = row + h * op.x.stride[2];
      rotate(head, head + half, cos, sin, sign, half);
    }
  }
}

/// out = 1 / (1 + exp(-x)) for whole lanes.
void sigmoid_lanes(float* __restrict out, const float* __restrict x, std::int64_t n) {
  Block negated;
  for (std::int64_t i = 0; i < n; ++i) negated.values[i] = -x[i];
  exp_lanes(out, negated.values, n);
  for (std::int64_t i = 0; i < n; ++i) out[i] = 1.0F / (1.0F + out[i]);
}

template <class T>
void swiglu_forward_block(const T* gate, const T* up, T* y, std::int64_t n) {
  Block g;
  Block s;
  load_padded(g.values, gate, n, 0);
  sigmoid_lanes(s.values, g.values, round_up(n));
  for (std::int64_t i = 0; i < n; ++i) g.values[i] *= s.values[i] * to_float(up[i]);
  store(y, g.values, n);
}

/// `y` may be null.
template <class T>
void swiglu_backward_block(const T* d_y, const T* gate, const T* up, T* d_gate, T* d_up, T* y, std::int64_t n) {
  Block g;
  Block s;
  Block out;
  Block again;
  load_padded(g.values, gate, n, 0);
  sigmoid_lanes(s.values, g.values, round_up(n));
  for (std::int64_t i = 0; i < n; ++i) {
    const float slope = s.values[i] * (1.0F + g.values[i] * (1.0F - s.values[i]));
    out.values[i] = to_float(d_y[i]) * to_float(up[i]) * slope;
    again.values[i] = g.values[i] * (s.values[i] * to_float(up[i]));
  }
  for (std::int64_t i = 0; i < n; ++i) d_up[i] = from_float<T>(to_float(d_y[i]) * g.values[i] * s.values[i]);
  store(d_gate, out.values, n);
  if (y != nullptr) store(y, again.values, n);
}

template <class From, class To>
void convert(const Cast& op, Range elems) {
  const From* const in = at<const From>(op.x);
  To* const out = at<To>(op.y);
  for (std::int64_t i = elems.begin; i < elems.end; ++i) out[i] = from_float<To>(to_float(in[i]));
}

/// Sets to 0 those of the n values that lie in skipped rows; values[0] is element `first` of x.
void clear_skipped(const SumOfSquares& op, std::int64_t first, float* values, std::int64_t n) {
  const std::int64_t width = op.x.shape[1];
  std::int64_t begin = 0;
  while (begin < n) {
    const std::int64_t row = (first + begin) / width;
    const std::int64_t end = smaller(n, (row + 1) * width - first);
    if (at<const std::int32_t>(op.skip)[row] != 0) {
      for (std::int64_t i = begin; i < end; ++i) values[i] = 0;
    }
    begin = end;
  }
}

}  // namespace

void rope(const Rope& op, Range rows) {
  with_type(op.x.dtype, [&](auto type) { rope_rows<decltype(type)>(op, rows); });
}

void swiglu_forward(const SwigluForward& op, Range rows) {
  with_type(op.y.dtype, [&](auto type) {
    using T = decltype(type);
    const std::int64_t width = op.y.shape[1];
    for (std::int64_t r = rows.begin; r < rows.end; ++r) {
      for (std::int64_t c = 0; c < width; c += kBlock) {
        swiglu_forward_block(at<const T>(op.gate, r * op.gate.stride[0] + c),
                             at<const T>(op.up, r * op.up.stride[0] + c), at<T>(op.y, r * op.y.stride[0] + c),
                             smaller(kBlock, width - c));
      }
    }
  });
}

void swiglu_backward(const SwigluBackward& op, Range rows) {
  with_type(op.d_y.dtype, [&](auto type) {
    using T = decltype(type);
    const std::int64_t width = op.d_y.shape[1];
    for (std::int64_t r = rows.begin; r < rows.end; ++r) {
      for (std::int64_t c = 0; c < width; c += kBlock) {
        swiglu_backward_block(at<const T>(op.d_y, r * op.d_y.stride[0] + c),
                              at<const T>(op.gate, r * op.gate.stride[0] + c),
                              at<const T>(op.up, r * op.up.stride[0] + c),
                              at<T>(op.d_gate, r * op.d_gate.stride[0] + c), at<T>(op.d_up, r * op.d_up.stride[0] + c),
                              op.y ? at<T>(op.y, r * op.y.stride[0] + c) : nullptr, smaller(kBlock, width - c));
      }
    }
  });
}

void cast(const Cast& op, Range elems) {
  with_type(op.x.dtype, [&](auto from) {
    with_type(op.y.dtype, [&](auto to) { convert<decltype(from), decltype(to)>(op, elems); });
  });
}

float sum_of_squares(const SumOfSquares& op, Range elems) {
  float total = 0;
  with_type(op.x.dtype, [&](auto type) {
    Block block;
    LaneArray lanes = LaneArray::Zero();
    for (std::int64_t i = elems.begin; i < elems.end; i += kBlock) {
      const std::int64_t n = smaller(kBlock, elems.end - i);
      load_padded(block.values, at<const decltype(type)>(op.x, i), n, 0);
      if (op.skip.data != nullptr) clear_skipped(op, i, block.values, n);
      for (std::int64_t j = 0; j < round_up(n); j += kLanes) lanes += ConstLanes(block.values + j).square();
    }
    total = lanes.sum();
  });
  return total;
}

float sum(const float* x, std::int64_t n) {
  Block block;
  float total = 0;
  for (std::int64_t i = 0; i < n; i += kBlock) {
    const std::int64_t count = smaller(kBlock, n - i);
    load_padded(block.values, x + i, count, 0);
    total += sum_lanes(block.values, round_up(count));
  }
  return total;
}

}  // namespace ferry::cpu::FERRY_ISA
