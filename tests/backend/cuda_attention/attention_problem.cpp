// SPDX-License-Identifier: Apache-2.0
// Layout, random inputs and comparison of attention problems.
#include "backend/cuda_attention/attention_problem.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

namespace ferry::test {
namespace {

constexpr std::byte kPoison{0xff};  // NaN in bf16 and f32

TensorView head_view(void* data, DType dtype, std::int64_t batch, std::int64_t rows, std::int64_t heads,
                     std::int64_t width, std::int64_t row_stride, std::int64_t batch_stride) {
  TensorView view(data, dtype, {batch, rows, heads, width});
  view.stride = {batch_stride, row_stride, width, 1};
  return view;
}

template <class Fn>
void for_each_offset(const TensorView& view, Fn&& fn) {
  std::array<std::int64_t, 4> shape = {1, 1, 1, 1}, stride{};
  std::copy_n(view.shape.begin(), view.rank, shape.begin() + 4 - view.rank);
  std::copy_n(view.stride.begin(), view.rank, stride.begin() + 4 - view.rank);
  for (std::int64_t a = 0; a < shape[0]; ++a) {
    for (std::int64_t b = 0; b < shape[1]; ++b) {
      for (std::int64_t c = 0; c < shape[2]; ++c) {
        for (std::int64_t d = 0; d < shape[3]; ++d) {
          fn(a * stride[0] + b * stride[1] + c * stride[2] + d * stride[3]);
        }
      }
    }
  }
}

double value_at(const TensorView& view, std::int64_t offset) {
  if (view.dtype == DType::kBf16) return static_cast<double>(to_f32(view.as<Bf16>()[offset]));
  return static_cast<double>(view.as<float>()[offset]);
}

void fill(const TensorView& view, std::mt19937_64& generator) {
  for_each_offset(view, [&](std::int64_t offset) {
    const auto value = static_cast<float>(static_cast<double>(generator() >> 11) * 0x1p-51 - 2);
    if (view.dtype == DType::kBf16) {
      view.as<Bf16>()[offset] = to_bf16(value);
    } else {
      view.as<float>()[offset] = value;
    }
  });
}

}  // namespace

AttentionProblem::AttentionProblem(const Shape& shape) : shape_(shape) {
  const auto take = [&](std::int64_t rows, std::int64_t columns, DType dtype) {
    const std::size_t offset = size_bytes_;
    const std::size_t bytes = static_cast<std::size_t>(shape_.batch * rows * columns) * size_of(dtype);
    size_bytes_ += (bytes + 255) / 256 * 256;
    return offset;
  };
  const std::int64_t fused_width = (shape_.n_heads + 2 * shape_.n_kv_heads + 1) * shape_.width;
  const std::int64_t out_width = (shape_.n_heads + 1) * shape_.width;
  qkv_offset_ = take(shape_.n_keys, fused_width, shape_.dtype);
  o_offset_ = take(shape_.n_queries, out_width, shape_.dtype);
  d_o_offset_ = take(shape_.n_queries, out_width, shape_.dtype);
  d_qkv_offset_ = take(shape_.n_keys, fused_width, shape_.dtype);
  lse_offset_ = take(shape_.n_queries, shape_.n_heads, DType::kF32);
}

std::string AttentionProblem::describe() const {
  return fmt::format("{} B{} T{} S{} H{}/{} D{}", to_string(shape_.dtype), shape_.batch, shape_.n_queries,
                     shape_.n_keys, shape_.n_heads, shape_.n_kv_heads, shape_.width);
}

AttentionForward AttentionProblem::forward(void* base) const {
  const AttentionBackward all = backward(base);
  return {.q = all.q, .k = all.k, .v = all.v, .o = all.o, .lse = all.lse, .scale = all.scale};
}

AttentionBackward AttentionProblem::backward(void* base) const {
  const Shape& s = shape_;
  auto* const bytes = static_cast<std::byte*>(base);
  const auto fused = [&](std::size_t offset, std::int64_t first, std::int64_t rows, std::int64_t heads) {
    const std::int64_t row_stride = (s.n_heads + 2 * s.n_kv_heads + 1) * s.width;
    void* const data = bytes + offset + static_cast<std::size_t>(first * s.width) * size_of(s.dtype);
    return head_view(data, s.dtype, s.batch, rows, heads, s.width, row_stride, s.n_keys * row_stride);
  };
  const auto out = [&](std::size_t offset) {
    const std::int64_t row_stride = (s.n_heads + 1) * s.width;
    return head_view(bytes + offset, s.dtype, s.batch, s.n_queries, s.n_heads, s.width, row_stride,
                     s.n_queries * row_stride);
  };
  return {.q = fused(qkv_offset_, 0, s.n_queries, s.n_heads),
          .k = fused(qkv_offset_, s.n_heads, s.n_keys, s.n_kv_heads),
          .v = fused(qkv_offset_, s.n_heads + s.n_kv_heads, s.n_keys, s.n_kv_heads),
          .o = out(o_offset_),
          .lse = TensorView(bytes + lse_offset_, DType::kF32, {s.batch, s.n_heads, s.n_queries}),
          .d_o = out(d_o_offset_),
          .d_q = fused(d_qkv_offset_, 0, s.n_queries, s.n_heads),
          .d_k = fused(d_qkv_offset_, s.n_heads, s.n_keys, s.n_kv_heads),
          .d_v = fused(d_qkv_offset_, s.n_heads + s.n_kv_heads, s.n_keys, s.n_kv_heads),
          .scale = static_cast<float>(1 / std::sqrt(static_cast<double>(s.width)))};
}

Bytes AttentionProblem::random_inputs(std::uint64_t seed) const {
  Bytes bytes(size_bytes_, kPoison);
  std::mt19937_64 generator(seed);
  const AttentionBackward op = backward(bytes.data());
  for (const TensorView* view : {&op.q, &op.k, &op.v, &op.d_o}) fill(*view, generator);
  return bytes;
}

std::string difference(const char* name, const TensorView& got, const TensorView& want,
                       const AttentionTolerance& tolerance) {
  double largest = 1, square = 0, square_of_difference = 0;
  std::int64_t n = 0;
  for_each_offset(want, [&](std::int64_t offset) { largest = std::max(largest, std::abs(value_at(want, offset))); });
  std::string worst;
  double worst_excess = 0;
  for_each_offset(want, [&](std::int64_t offset) {
    const double g = value_at(got, offset), w = value_at(want, offset);
    const double excess = std::abs(g - w) / (tolerance.relative * std::abs(w) + tolerance.of_largest * largest);
    if (!(excess <= std::max(1.0, worst_excess))) {
      worst = fmt::format("{} at offset {}: got {}, want {}, {:.3g} times the tolerance; ", name, offset, g, w, excess);
      worst_excess = excess;
    }
    square += w * w;
    square_of_difference += (g - w) * (g - w);
    ++n;
  });
  const double mean = std::sqrt(std::max(square / static_cast<double>(n), 0.01));
  const double mean_difference = std::sqrt(square_of_difference / static_cast<double>(n));
  if (!(mean_difference <= tolerance.of_mean * mean)) {
    worst += fmt::format("{}: the mean difference is {:.3g} of {:.3g}; ", name, mean_difference, mean);
  }
  return worst;
}

void poison(const TensorView& view) {
  auto* const bytes = static_cast<std::byte*>(view.data);
  for_each_offset(view, [&](std::int64_t offset) {
    std::memset(bytes + offset * static_cast<std::int64_t>(size_of(view.dtype)), static_cast<int>(kPoison),
                size_of(view.dtype));
  });
}

std::vector<AttentionProblem::Shape> attention_shapes() {
  std::vector<AttentionProblem::Shape> list;
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    list.insert(list.end(), {{dtype, 1, 1, 1, 2, 1, 64},
                             {dtype, 2, 7, 7, 4, 2, 64},
                             {dtype, 1, 16, 16, 1, 1, 128},
                             {dtype, 2, 33, 33, 8, 2, 80},
                             {dtype, 2, 100, 100, 8, 2, 128},
                             {dtype, 1, 129, 129, 4, 4, 96},
                             {dtype, 2, 257, 257, 8, 2, 64},
                             {dtype, 1, 17, 17, 2, 2, 10},
                             {dtype, 1, 5, 37, 4, 2, 64},
                             {dtype, 2, 1, 70, 4, 1, 128},
                             {dtype, 1, 64, 65, 2, 1, 72},
                             {dtype, 1, 40, 40, 2, 1, 256},
                             {dtype, 1, 24, 24, 2, 1, 200},
                             {dtype, 3, 512, 512, 8, 2, 64}});
  }
  std::mt19937 generator(7);
  const auto draw = [&](std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(generator() % static_cast<std::uint32_t>(high - low + 1));
  };
  for (int i = 0; i < 16; ++i) {
    const std::int64_t length = draw(1, 300), kv_heads = draw(1, 3), width = 8 * draw(1, 16);
    const std::int64_t past = i % 4 == 3 ? draw(1, 60) : 0;
    list.push_back({i % 2 == 0 ? DType::kBf16 : DType::kF32, draw(1, 3), length, length + past, kv_heads * draw(1, 4),
                    kv_heads, width});
  }
  return list;
}

}  // namespace ferry::test
