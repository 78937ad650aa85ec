// SPDX-License-Identifier: Apache-2.0
// AdamW, eight or 16 elements at a time with AVX2 and FMA.
// Source: Loshchilov & Hutter 2019, arXiv:1711.05101, algorithm 2; order of operations of torch.optim.AdamW.
//
// This file alone is compiled for AVX2. It calls no inline function or template of another header: the linker keeps one
// copy of such a function for the whole program, and that copy must not hold AVX2 code.
#include <immintrin.h>

#include "optim/adamw_kernels.h"

namespace ferry::detail {
namespace {

constexpr std::int64_t kPrefetchBytes = 2048;  // as adamw_avx512.cpp, which has the measurement

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
  __m256 inverse_sqrt_correction2;
  __m256 eps;
};

VectorScalars broadcast(const AdamwScalars& s) {
  return {_mm256_set1_ps(s.gradient_scale),           _mm256_set1_ps(s.beta2), _mm256_set1_ps(s.one_minus_beta1),
          _mm256_set1_ps(s.one_minus_beta2),          _mm256_set1_ps(s.decay), _mm256_set1_ps(s.step_size),
          _mm256_set1_ps(s.inverse_sqrt_correction2), _mm256_set1_ps(s.eps)};
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
  const __m256 denom = _mm256_fmadd_ps(_mm256_sqrt_ps(e.v), s.inverse_sqrt_correction2, s.eps);
  e.p = _mm256_fnmadd_ps(s.step_size, _mm256_div_ps(e.m, denom), e.p);
  return e;
}

/// A few operations find the vectors in which something may be NaN or beyond bf16, so that no other pays for them: any
/// NaN of m, v or their quotient is one of p too, and a sum with anything huge is huge.
bool is_delicate(const Vector& e) {
  const __m256 sum = _mm256_fmadd_ps(e.p, e.p, _mm256_fmadd_ps(e.m, e.m, e.v));
  return _mm256_movemask_ps(_mm256_cmp_ps(sum, _mm256_set1_ps(1e30F), _CMP_NLT_UQ)) != 0;
}

__m256i load_words(const void* address) { return _mm256_loadu_si256(static_cast<const __m256i*>(address)); }
void store_words(void* address, __m256i words) { _mm256_storeu_si256(static_cast<__m256i*>(address), words); }

// 16 words of 16 bits: those of even place and those of odd place, each the upper half of an f32. This needs no
// shuffles.

__m256 even_of(__m256i words) { return _mm256_castsi256_ps(_mm256_slli_epi32(words, 16)); }
__m256 odd_of(__m256i words) {
  return _mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32(static_cast<int>(0xffff0000U))));
}
/// The upper halves of both.
__m256i interleave(__m256i even, __m256i odd) { return _mm256_blend_epi16(_mm256_srli_epi32(even, 16), odd, 0xaa); }

struct Noise {
  __m256i weight;
  __m256i m;
  __m256i v;
};

/// Of eight elements, from element + key.first of each.
Noise draw(__m256i x, __m256i second_key) {
  x = _mm256_xor_si256(x, _mm256_srli_epi32(x, 16));
  x = _mm256_mullo_epi32(x, _mm256_set1_epi32(static_cast<int>(kNoise1)));
  x = _mm256_xor_si256(x, _mm256_xor_si256(_mm256_srli_epi32(x, 15), second_key));
  x = _mm256_mullo_epi32(x, _mm256_set1_epi32(static_cast<int>(kNoise2)));
  x = _mm256_xor_si256(x, _mm256_srli_epi32(x, 14));
  const __m256i lower = _mm256_set1_epi32(0xffff);
  const __m256i weight = _mm256_madd_epi16(x, _mm256_set1_epi32(static_cast<int>(kNoise3)));
  return {_mm256_and_si256(weight, lower), _mm256_and_si256(x, lower), _mm256_srli_epi32(x, 16)};
}

/// Gives NaN its bits, and takes the draws from what they could make an infinity.
void settle(Vector& e, Noise& noise) {
  const auto without = [](__m256 value, __m256i draw) {
    const __m256 magnitude = _mm256_and_ps(value, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff)));
    const __m256 max_bf16 = _mm256_castsi256_ps(_mm256_set1_epi32(0x7f7f0000));
    return _mm256_and_si256(_mm256_castps_si256(_mm256_cmp_ps(magnitude, max_bf16, _CMP_LT_OQ)), draw);
  };
  e = {canonical(e.p), canonical(e.m), canonical(e.v)};
  noise = {without(e.p, noise.weight), without(e.m, noise.m), without(e.v, noise.v)};
}

/// Adds what rounds the upper half away from zero where that is its turn.
template <bool kStochastic>
__m256i round_upper(__m256 value, __m256i draw) {
  const __m256i bits = _mm256_castps_si256(value);
  if constexpr (kStochastic) return _mm256_add_epi32(bits, draw);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  return _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
}

/// Asks for the lines that are due soon.
void prefetch(const void* array) { _mm_prefetch(static_cast<const char*>(array) + kPrefetchBytes, _MM_HINT_T0); }

// One storage format each. prefetch_after() asks for what is due after element i; update() loads, updates and stores
// kLanes elements from `i` on.

struct F32Arrays {
  static constexpr std::int64_t kLanes = 8;
  float* p;
  float* m;
  float* v;
  const float* g;

  void prefetch_after(std::int64_t i) const {
    prefetch(p + i);
    prefetch(m + i);
    prefetch(v + i);
    prefetch(g + i);
  }

  void update(std::int64_t i, const VectorScalars& s) const {
    Vector e = detail::update({_mm256_loadu_ps(p + i), _mm256_loadu_ps(m + i), _mm256_loadu_ps(v + i)},
                              _mm256_loadu_ps(g + i), s);
    if (is_delicate(e)) e = {canonical(e.p), canonical(e.m), canonical(e.v)};
    _mm256_storeu_ps(p + i, e.p);
    _mm256_storeu_ps(m + i, e.m);
    _mm256_storeu_ps(v + i, e.v);
  }
};

struct SplitArrays {
  static constexpr std::int64_t kLanes = 8;
  Bf16* high;
  std::int16_t* low;
  float* m;
  float* v;
  const Bf16* g;

  void prefetch_after(std::int64_t i) const {
    prefetch(high + i);
    prefetch(low + i);
    prefetch(m + i);
    prefetch(v + i);
    prefetch(g + i);
  }

  static __m256i load_upper(const Bf16* from) {
    return _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))), 16);
  }
  /// Values that fit 16 bits unsigned.
  static void store_16_bits(void* to, __m256i values) {
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(values, values), 0x08);
    _mm_storeu_si128(static_cast<__m128i*>(to), _mm256_castsi256_si128(packed));
  }

  void update(std::int64_t i, const VectorScalars& s) const {
    const __m256i rest = _mm256_cvtepi16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(low + i)));
    const __m256 master = _mm256_castsi256_ps(_mm256_add_epi32(load_upper(high + i), rest));
    Vector e = detail::update({master, _mm256_loadu_ps(m + i), _mm256_loadu_ps(v + i)},
                              _mm256_castsi256_ps(load_upper(g + i)), s);
    if (is_delicate(e)) e = {canonical(e.p), canonical(e.m), canonical(e.v)};
    const __m256i bits = _mm256_castps_si256(e.p);
    store_16_bits(high + i, _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x8000)), 16));
    store_16_bits(low + i, _mm256_and_si256(bits, _mm256_set1_epi32(0xffff)));
    _mm256_storeu_ps(m + i, e.m);
    _mm256_storeu_ps(v + i, e.v);
  }
};

/// bf16 moments; bf16 weights with or without the rest of the master.
template <bool kSplit, bool kStochastic>
struct Bf16Arrays {
  static constexpr std::int64_t kLanes = 16;
  Bf16* p;
  std::int16_t* low;
  Bf16* m;
  Bf16* v;
  const Bf16* g;
  __m256i first;  // element + key.first of the even places at i = 0
  __m256i second_key;

  void prefetch_after(std::int64_t i) const {
    prefetch(p + i);
    if constexpr (kSplit) prefetch(low + i);
    prefetch(m + i);
    prefetch(v + i);
    prefetch(g + i);
  }
  void update(std::int64_t i, const VectorScalars& s) const {
    const __m256i p_words = load_words(p + i), m_words = load_words(m + i), v_words = load_words(v + i);
    const __m256i g_words = load_words(g + i);
    __m256 p_even = even_of(p_words), p_odd = odd_of(p_words);
    if constexpr (kSplit) {
      const __m256i rest = load_words(low + i);
      const __m256i rest_even = _mm256_srai_epi32(_mm256_slli_epi32(rest, 16), 16);
      p_even = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p_even), rest_even));
      p_odd = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p_odd), _mm256_srai_epi32(rest, 16)));
    }
    Vector even = detail::update({p_even, even_of(m_words), even_of(v_words)}, even_of(g_words), s);
    Vector odd = detail::update({p_odd, odd_of(m_words), odd_of(v_words)}, odd_of(g_words), s);
    const __m256i at = _mm256_add_epi32(first, _mm256_set1_epi32(static_cast<int>(i)));
    Noise even_noise = draw(at, second_key);
    Noise odd_noise = draw(_mm256_add_epi32(at, _mm256_set1_epi32(1)), second_key);
    if (is_delicate(even) || is_delicate(odd)) {
      settle(even, even_noise);
      settle(odd, odd_noise);
    }
    const auto rounded = [](__m256 x, __m256i x_noise, __m256 y, __m256i y_noise) {
      return interleave(round_upper<kStochastic>(x, x_noise), round_upper<kStochastic>(y, y_noise));
    };
    store_words(m + i, rounded(even.m, even_noise.m, odd.m, odd_noise.m));
    store_words(v + i, rounded(even.v, even_noise.v, odd.v, odd_noise.v));
    if constexpr (kSplit) {
      const __m256i half = _mm256_set1_epi32(0x8000);
      const __m256i even_bits = _mm256_castps_si256(even.p), odd_bits = _mm256_castps_si256(odd.p);
      store_words(p + i, interleave(_mm256_add_epi32(even_bits, half), _mm256_add_epi32(odd_bits, half)));
      store_words(low + i, _mm256_blend_epi16(even_bits, _mm256_slli_epi32(odd_bits, 16), 0xaa));
    } else {
      store_words(p + i, rounded(even.p, even_noise.weight, odd.p, odd_noise.weight));
    }
  }
};

/// All whole vectors. Returns how many elements they hold.
template <class Arrays>
std::int64_t update_vectors(const Arrays& arrays, std::int64_t n, const AdamwScalars& scalars) {
  const VectorScalars s = broadcast(scalars);
  std::int64_t i = 0;
  for (; i + Arrays::kLanes <= n; i += Arrays::kLanes) {
    arrays.prefetch_after(i);
    arrays.update(i, s);
  }
  return i;
}

template <bool kSplit, bool kStochastic>
std::int64_t update_bf16(const AdamwRange& range, const AdamwScalars& scalars, const NoiseKey& key) {
  const std::uint32_t first = static_cast<std::uint32_t>(range.element) + key.first;
  const __m256i even = _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14);
  const Bf16Arrays<kSplit, kStochastic> arrays{static_cast<Bf16*>(range.weight),
                                               range.weight_low,
                                               static_cast<Bf16*>(range.m),
                                               static_cast<Bf16*>(range.v),
                                               static_cast<const Bf16*>(range.gradient),
                                               _mm256_add_epi32(even, _mm256_set1_epi32(static_cast<int>(first))),
                                               _mm256_set1_epi32(static_cast<int>(key.second))};
  return update_vectors(arrays, range.n, scalars);
}

std::int64_t update_vectors(const AdamwRange& range, const AdamwScalars& scalars, const NoiseKey& key) {
  if (range.dtype == DType::kF32) {
    const F32Arrays arrays{static_cast<float*>(range.weight), static_cast<float*>(range.m),
                           static_cast<float*>(range.v), static_cast<const float*>(range.gradient)};
    return update_vectors(arrays, range.n, scalars);
  }
  if (range.state == OptimizerState::kF32) {
    const SplitArrays arrays{static_cast<Bf16*>(range.weight), range.weight_low, static_cast<float*>(range.m),
                             static_cast<float*>(range.v), static_cast<const Bf16*>(range.gradient)};
    return update_vectors(arrays, range.n, scalars);
  }
  const bool stochastic = scalars.rounding == Rounding::kStochastic;
  if (range.state == OptimizerState::kMixed) {
    return stochastic ? update_bf16<true, true>(range, scalars, key) : update_bf16<true, false>(range, scalars, key);
  }
  return stochastic ? update_bf16<false, true>(range, scalars, key) : update_bf16<false, false>(range, scalars, key);
}

}  // namespace

void adamw_avx2(const AdamwRange& range, const AdamwScalars& scalars, const NoiseKey& key) {
  const std::int64_t done = update_vectors(range, scalars, key);
  if (done < range.n) adamw_scalar(slice(range, done, range.n - done), scalars, key);
}

}  // namespace ferry::detail
