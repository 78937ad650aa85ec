// SPDX-License-Identifier: Apache-2.0
// AdamW, one element at a time: the reference that defines the bits.
// Source: Loshchilov & Hutter 2019, arXiv:1711.05101, algorithm 2; order of operations of torch.optim.AdamW.
#include <cmath>
#include <limits>

#include "optim/adamw_kernels.h"

namespace ferry::detail {
namespace {

static_assert(std::bit_cast<std::uint32_t>(std::numeric_limits<float>::quiet_NaN()) == 0x7fc00000U);

constexpr float kMaxBf16 = std::bit_cast<float>(0x7f7f0000U);

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
  const float denom = std::fma(std::sqrt(e.v), s.inverse_sqrt_correction2, s.eps);
  e.p = std::fma(-s.step_size, e.m / denom, e.p);
  return {canonical(e.p), canonical(e.m), canonical(e.v)};
}

Bf16 round_stochastic(float value, std::uint32_t draw) {
  const std::uint32_t noise = std::abs(value) < kMaxBf16 ? draw : 0;  // not for NaN
  return {static_cast<std::uint16_t>((std::bit_cast<std::uint32_t>(value) + noise) >> 16)};
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

/// bf16 moments; bf16 weights with or without the rest of the master.
template <bool kSplit>
void update_bf16(const AdamwRange& range, const AdamwScalars& s, const NoiseKey& key) {
  auto* p = static_cast<Bf16*>(range.weight);
  std::int16_t* low = range.weight_low;
  auto* m = static_cast<Bf16*>(range.m);
  auto* v = static_cast<Bf16*>(range.v);
  const auto* g = static_cast<const Bf16*>(range.gradient);
  const bool stochastic = s.rounding == Rounding::kStochastic;
  for (std::int64_t i = 0; i < range.n; ++i) {
    const float master = kSplit ? join_f32(p[i], low[i]) : to_f32(p[i]);
    const Element e = update({master, to_f32(m[i]), to_f32(v[i])}, to_f32(g[i]), s);
    const Draws draws = rounding_draws(key, static_cast<std::uint32_t>(range.element + i));
    const auto round = [&](float value, std::uint32_t draw) {
      return stochastic ? round_stochastic(value, draw) : to_bf16(value);
    };
    m[i] = round(e.m, draws.m);
    v[i] = round(e.v, draws.v);
    if constexpr (kSplit) {
      const SplitF32 split = split_f32(e.p);
      p[i] = split.high;
      low[i] = split.low;
    } else {
      p[i] = round(e.p, draws.weight);
    }
  }
}

}  // namespace

Draws rounding_draws(const NoiseKey& key, std::uint32_t element) {
  std::uint32_t x = element + key.first;
  x ^= x >> 16;
  x *= kNoise1;
  x ^= (x >> 15) ^ key.second;
  x *= kNoise2;
  x ^= x >> 14;
  const std::uint32_t m = x & 0xffffU;
  const std::uint32_t v = x >> 16;
  return {.weight = (m * (kNoise3 & 0xffffU) + v * (kNoise3 >> 16)) & 0xffffU, .m = m, .v = v};
}

void adamw_scalar(const AdamwRange& range, const AdamwScalars& scalars, const NoiseKey& key) {
  if (range.dtype == DType::kF32) return update_f32(range, scalars);
  switch (range.state) {
    case OptimizerState::kF32: return update_split(range, scalars);
    case OptimizerState::kMixed: return update_bf16<true>(range, scalars, key);
    case OptimizerState::kBf16: return update_bf16<false>(range, scalars, key);
  }
}

}  // namespace ferry::detail
