// SPDX-License-Identifier: Apache-2.0
// AdamW, eight elements at a time with AVX2 and FMA.
// Source: Loshchilov & Hutter 2019, arXiv:1711.05101, algorithm 2; order of operations of torch.optim.AdamW.
//
// This file alone is compiled for AVX2. It calls no inline function or template of another header: the linker keeps one
// copy of such a function for the whole program, and that copy must not hold AVX2 code.
#include <immintrin.h>

#include <cstring>

#include "optim/adamw_kernels.h"

namespace ferry::detail {
namespace {

constexpr std::int64_t kLanes = 8;

struct Vector {
  __m256 p;
  __m256 m;
  __m256 v;
};

struct VectorScalars {
  __m256 gradient_scale;
  __m256 beta2;
  __m256 one_minus_beta1;
  __m256 one_minus_beta2;
  __m256 decay;
  __m256 step_size;
  __m256 sqrt_correction2;
  __m256 eps;
};

VectorScalars broadcast(const AdamwScalars& s) {
  return {_mm256_set1_ps(s.gradient_scale),   _mm256_set1_ps(s.beta2), _mm256_set1_ps(s.one_minus_beta1),
          _mm256_set1_ps(s.one_minus_beta2),  _mm256_set1_ps(s.decay), _mm256_set1_ps(s.step_size),
          _mm256_set1_ps(s.sqrt_correction2), _mm256_set1_ps(s.eps)};
}

__m256 canonical(__m256 value) {
  const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000));
  return _mm256_blendv_ps(value, nan, _mm256_cmp_ps(value, value, _CMP_UNORD_Q));
}

Vector update(Vector e, __m256 g, const VectorScalars& s) {
  g = _mm256_mul_ps(s.gradient_scale, g);
  e.p = _mm256_mul_ps(e.p, s.decay);
  e.m = _mm256_fmadd_ps(s.one_minus_beta1, _mm256_sub_ps(g, e.m), e.m);
  e.v = _mm256_fmadd_ps(_mm256_mul_ps(s.one_minus_beta2, g), g, _mm256_mul_ps(s.beta2, e.v));
  const __m256 denom = _mm256_add_ps(_mm256_div_ps(_mm256_sqrt_ps(e.v), s.sqrt_correction2), s.eps);
  e.p = _mm256_fnmadd_ps(s.step_size, _mm256_div_ps(e.m, denom), e.p);
  return {canonical(e.p), canonical(e.m), canonical(e.v)};
}

__m256i load_16_bits(const void* address) {
  return _mm256_cvtepu16_epi32(_mm_loadu_si128(static_cast<const __m128i*>(address)));
}

/// The lower halves of eight values that fit 16 bits unsigned.
void store_16_bits(void* address, __m256i values) {
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(values, values), 0x08);
  _mm_storeu_si128(static_cast<__m128i*>(address), _mm256_castsi256_si128(packed));
}

__m256 load_bf16(const Bf16* address) { return _mm256_castsi256_ps(_mm256_slli_epi32(load_16_bits(address), 16)); }

/// To nearest even. `value` holds no NaN but the canonical one, which comes out as 0x7fc0.
void store_bf16(Bf16* address, __m256 value) {
  const __m256i bits = _mm256_castps_si256(value);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  store_16_bits(address, _mm256_srli_epi32(rounded, 16));
}

__m256 load_split(const Bf16* high, const std::int16_t* low) {
  const __m256i upper = _mm256_slli_epi32(load_16_bits(high), 16);
  const __m256i rest = _mm256_cvtepi16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(low)));
  return _mm256_castsi256_ps(_mm256_add_epi32(upper, rest));
}

void store_split(Bf16* high, std::int16_t* low, __m256 value) {
  const __m256i bits = _mm256_castps_si256(value);
  const __m256i upper = _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x8000)), 16);
  store_16_bits(high, upper);
  const __m256i rest = _mm256_sub_epi32(bits, _mm256_slli_epi32(upper, 16));
  store_16_bits(low, _mm256_and_si256(rest, _mm256_set1_epi32(0xffff)));
}

// One storage format each: eight elements from `i` on are loaded, updated and stored. copy() moves single elements, for
// the rest of a range that is shorter than a vector.

template <class T>
void copy_array(T* to, const T* from, std::int64_t n) {
  std::memcpy(to, from, static_cast<std::size_t>(n) * sizeof(T));
}

struct F32Arrays {
  float* p;
  float* m;
  float* v;
  const float* g;

  void update_vector(std::int64_t i, const VectorScalars& s) const {
    const Vector e =
        update({_mm256_loadu_ps(p + i), _mm256_loadu_ps(m + i), _mm256_loadu_ps(v + i)}, _mm256_loadu_ps(g + i), s);
    _mm256_storeu_ps(p + i, e.p);
    _mm256_storeu_ps(m + i, e.m);
    _mm256_storeu_ps(v + i, e.v);
  }

  void update_rest(std::int64_t i, std::int64_t n, const VectorScalars& s) const {
    float p_rest[kLanes] = {}, m_rest[kLanes] = {}, v_rest[kLanes] = {}, g_rest[kLanes] = {};
    copy_array(p_rest, p + i, n);
    copy_array(m_rest, m + i, n);
    copy_array(v_rest, v + i, n);
    copy_array(g_rest, g + i, n);
    F32Arrays{p_rest, m_rest, v_rest, g_rest}.update_vector(0, s);
    copy_array(p + i, p_rest, n);
    copy_array(m + i, m_rest, n);
    copy_array(v + i, v_rest, n);
  }
};

struct SplitArrays {
  Bf16* high;
  std::int16_t* low;
  float* m;
  float* v;
  const Bf16* g;

  void update_vector(std::int64_t i, const VectorScalars& s) const {
    const Vector e =
        update({load_split(high + i, low + i), _mm256_loadu_ps(m + i), _mm256_loadu_ps(v + i)}, load_bf16(g + i), s);
    store_split(high + i, low + i, e.p);
    _mm256_storeu_ps(m + i, e.m);
    _mm256_storeu_ps(v + i, e.v);
  }

  void update_rest(std::int64_t i, std::int64_t n, const VectorScalars& s) const {
    Bf16 high_rest[kLanes] = {}, g_rest[kLanes] = {};
    std::int16_t low_rest[kLanes] = {};
    float m_rest[kLanes] = {}, v_rest[kLanes] = {};
    copy_array(high_rest, high + i, n);
    copy_array(low_rest, low + i, n);
    copy_array(m_rest, m + i, n);
    copy_array(v_rest, v + i, n);
    copy_array(g_rest, g + i, n);
    SplitArrays{high_rest, low_rest, m_rest, v_rest, g_rest}.update_vector(0, s);
    copy_array(high + i, high_rest, n);
    copy_array(low + i, low_rest, n);
    copy_array(m + i, m_rest, n);
    copy_array(v + i, v_rest, n);
  }
};

struct Bf16Arrays {
  Bf16* p;
  Bf16* m;
  Bf16* v;
  const Bf16* g;

  void update_vector(std::int64_t i, const VectorScalars& s) const {
    const Vector e = update({load_bf16(p + i), load_bf16(m + i), load_bf16(v + i)}, load_bf16(g + i), s);
    store_bf16(p + i, e.p);
    store_bf16(m + i, e.m);
    store_bf16(v + i, e.v);
  }

  void update_rest(std::int64_t i, std::int64_t n, const VectorScalars& s) const {
    Bf16 p_rest[kLanes] = {}, m_rest[kLanes] = {}, v_rest[kLanes] = {}, g_rest[kLanes] = {};
    copy_array(p_rest, p + i, n);
    copy_array(m_rest, m + i, n);
    copy_array(v_rest, v + i, n);
    copy_array(g_rest, g + i, n);
    Bf16Arrays{p_rest, m_rest, v_rest, g_rest}.update_vector(0, s);
    copy_array(p + i, p_rest, n);
    copy_array(m + i, m_rest, n);
    copy_array(v + i, v_rest, n);
  }
};

template <class Arrays>
void update_all(const Arrays& arrays, std::int64_t n, const AdamwScalars& scalars) {
  const VectorScalars s = broadcast(scalars);
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) arrays.update_vector(i, s);
  if (i < n) arrays.update_rest(i, n - i, s);
}

}  // namespace

void adamw_avx2(const AdamwRange& range, const AdamwScalars& scalars) {
  if (range.dtype == DType::kF32) {
    const F32Arrays arrays{static_cast<float*>(range.weight), static_cast<float*>(range.m),
                           static_cast<float*>(range.v), static_cast<const float*>(range.gradient)};
    return update_all(arrays, range.n, scalars);
  }
  if (range.state == OptimizerState::kF32) {
    const SplitArrays arrays{static_cast<Bf16*>(range.weight), range.weight_low, static_cast<float*>(range.m),
                             static_cast<float*>(range.v), static_cast<const Bf16*>(range.gradient)};
    return update_all(arrays, range.n, scalars);
  }
  const Bf16Arrays arrays{static_cast<Bf16*>(range.weight), static_cast<Bf16*>(range.m), static_cast<Bf16*>(range.v),
                          static_cast<const Bf16*>(range.gradient)};
  update_all(arrays, range.n, scalars);
}

}  // namespace ferry::detail
