// SPDX-License-Identifier: Apache-2.0
// AdamW, one element at a time: the reference that defines the bits.
// Source: Loshchilov & Hutter 2019, arXiv:1711.05101, algorithm 2; order of operations of torch.optim.AdamW.
#include <cmath>
#include <limits>

#include "optim/adamw_kernels.h"

namespace ferry::detail {
namespace {

static_assert(std::bit_cast<std::uint32_t>(std::numeric_limits<float>::quiet_NaN()) == 0x7fc00000U);

struct Element {
  float p = 0;
  float m = 0;
  float v = 0;
};

float canonical(float value) { return std::isnan(value) ? std::numeric_limits<float>::quiet_NaN() : value; }

Element update(Element e, float g, const AdamwScalars& s) {
  g = s.gradient_scale * g;
  e.p = e.p * s.decay;
  e.m = std::fma(s.one_minus_beta1, g - e.m, e.m);
  e.v = std::fma(s.one_minus_beta2 * g, g, s.beta2 * e.v);
  const float denom = std::sqrt(e.v) / s.sqrt_correction2 + s.eps;
  e.p = std::fma(-s.step_size, e.m / denom, e.p);
  return {canonical(e.p), canonical(e.m), canonical(e.v)};
}

void update_f32(const AdamwRange& range, const AdamwScalars& s) {
  auto* p = static_cast<float*>(range.weight);
  auto* m = static_cast<float*>(range.m);
  auto* v = static_cast<float*>(range.v);
  const auto* g = static_cast<const float*>(range.gradient);
  for (std::int64_t i = 0; i < range.n; ++i) {
    const Element e = update({p[i], m[i], v[i]}, g[i], s);
    p[i] = e.p;
    m[i] = e.m;
    v[i] = e.v;
  }
}

void update_split(const AdamwRange& range, const AdamwScalars& s) {
  auto* high = static_cast<Bf16*>(range.weight);
  std::int16_t* low = range.weight_low;
  auto* m = static_cast<float*>(range.m);
  auto* v = static_cast<float*>(range.v);
  const auto* g = static_cast<const Bf16*>(range.gradient);
  for (std::int64_t i = 0; i < range.n; ++i) {
    const Element e = update({join_f32(high[i], low[i]), m[i], v[i]}, to_f32(g[i]), s);
    const SplitF32 master = split_f32(e.p);
    high[i] = master.high;
    low[i] = master.low;
    m[i] = e.m;
    v[i] = e.v;
  }
}

void update_bf16(const AdamwRange& range, const AdamwScalars& s) {
  auto* p = static_cast<Bf16*>(range.weight);
  auto* m = static_cast<Bf16*>(range.m);
  auto* v = static_cast<Bf16*>(range.v);
  const auto* g = static_cast<const Bf16*>(range.gradient);
  for (std::int64_t i = 0; i < range.n; ++i) {
    const Element e = update({to_f32(p[i]), to_f32(m[i]), to_f32(v[i])}, to_f32(g[i]), s);
    p[i] = to_bf16(e.p);
    m[i] = to_bf16(e.m);
    v[i] = to_bf16(e.v);
  }
}

}  // namespace

void adamw_scalar(const AdamwRange& range, const AdamwScalars& scalars) {
  if (range.dtype == DType::kF32) return update_f32(range, scalars);
  if (range.state == OptimizerState::kF32) return update_split(range, scalars);
  update_bf16(range, scalars);
}

}  // namespace ferry::detail
