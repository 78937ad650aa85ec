// SPDX-License-Identifier: Apache-2.0
// AdamW, 16 or 32 elements at a time with AVX-512.
// Source: Loshchilov & Hutter 2019, arXiv:1711.05101, algorithm 2; order of operations of torch.optim.AdamW.
//
// This file alone is compiled for AVX-512. It calls no inline function or template of another header: the linker keeps
// one copy of such a function for the whole program, and that copy must not hold AVX-512 code.
#include <immintrin.h>

#include "optim/adamw_kernels.h"

namespace ferry::detail {
namespace {

// The hardware's prefetchers alone leave gaps: four or five arrays, and none of them crosses a page of 4 KiB.
// One core of a Xeon with AVX-512 moves 28 GB/s when it passes over the arrays in place; of that AdamW reaches, in
// bf16, mixed and f32 state, stochastic: without prefetch 0.76, 0.84, 0.89; 512 bytes ahead 0.89, 1.00, 0.99; 1024:
// 0.94, 1.02, 1.05; 2048 and 4096 the same within noise. Stores that bypass the caches: 0.76, 0.74, 0.56. Unrolling by
// two: nothing.
constexpr std::int64_t kPrefetchBytes = 2048;

struct Vector {
  __m512 p;
  __m512 m;
  __m512 v;
};

struct VectorScalars {
  __m512 gradient_scale;
  __m512 beta2;
  __m512 one_minus_beta1;
  __m512 one_minus_beta2;
  __m512 decay;
  __m512 step_size;
  __m512 inverse_sqrt_correction2;
  __m512 eps;
};

VectorScalars broadcast(const AdamwScalars& s) {
  return {_mm512_set1_ps(s.gradient_scale),           _mm512_set1_ps(s.beta2), _mm512_set1_ps(s.one_minus_beta1),
          _mm512_set1_ps(s.one_minus_beta2),          _mm512_set1_ps(s.decay), _mm512_set1_ps(s.step_size),
          _mm512_set1_ps(s.inverse_sqrt_correction2), _mm512_set1_ps(s.eps)};
}

__m512 canonical(__m512 value) {
  const __m512 nan = _mm512_castsi512_ps(_mm512_set1_epi32(0x7fc00000));
  return _mm512_mask_mov_ps(value, _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q), nan);
}

Vector update(Vector e, __m512 g, const VectorScalars& s) {
  g = _mm512_mul_ps(s.gradient_scale, g);
  e.p = _mm512_mul_ps(e.p, s.decay);
  e.m = _mm512_fmadd_ps(s.one_minus_beta1, _mm512_sub_ps(g, e.m), e.m);
  e.v = _mm512_fmadd_ps(_mm512_mul_ps(s.one_minus_beta2, g), g, _mm512_mul_ps(s.beta2, e.v));
  const __m512 denom = _mm512_fmadd_ps(_mm512_sqrt_ps(e.v), s.inverse_sqrt_correction2, s.eps);
  e.p = _mm512_fnmadd_ps(s.step_size, _mm512_div_ps(e.m, denom), e.p);
  return e;
}

/// A few operations find the vectors in which something may be NaN or beyond bf16, so that no other pays for them: any
/// NaN of m, v or their quotient is one of p too, and a sum with anything huge is huge.
bool is_delicate(const Vector& e) {
  const __m512 sum = _mm512_fmadd_ps(e.p, e.p, _mm512_fmadd_ps(e.m, e.m, e.v));
  return _mm512_cmp_ps_mask(sum, _mm512_set1_ps(1e30F), _CMP_NLT_UQ) != 0;
}

// Loads and stores of whole vectors, and of the first elements of one: the others are 0, and are not touched in memory.

struct Whole {
  static __m512 load(const float* from) { return _mm512_loadu_ps(from); }
  static void store(float* to, __m512 value) { _mm512_storeu_ps(to, value); }
  template <class T>
  static __m512i load_32(const T* from) {
    return _mm512_loadu_si512(from);
  }
  template <class T>
  static void store_32(T* to, __m512i value) {
    _mm512_storeu_si512(to, value);
  }
  template <class T>
  static __m256i load_16(const T* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
  template <class T>
  static void store_16(T* to, __m256i value) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), value);
  }
};

struct First {
  __mmask32 mask;

  explicit First(std::int64_t n) : mask((std::uint32_t{1} << n) - 1) {}  // n < 32
  __mmask16 half() const { return static_cast<__mmask16>(mask); }

  __m512 load(const float* from) const { return _mm512_maskz_loadu_ps(half(), from); }
  void store(float* to, __m512 value) const { _mm512_mask_storeu_ps(to, half(), value); }
  template <class T>
  __m512i load_32(const T* from) const {
    return _mm512_maskz_loadu_epi16(mask, from);
  }
  template <class T>
  void store_32(T* to, __m512i value) const {
    _mm512_mask_storeu_epi16(to, mask, value);
  }
  template <class T>
  __m256i load_16(const T* from) const {
    return _mm256_maskz_loadu_epi16(half(), from);
  }
  template <class T>
  void store_16(T* to, __m256i value) const {
    _mm256_mask_storeu_epi16(to, half(), value);
  }
};

// 32 words of 16 bits: those of even place and those of odd place, each the upper half of an f32. This needs no
// shuffles.

__m512i upper_mask() { return _mm512_set1_epi32(static_cast<int>(0xffff0000U)); }
__m512 even_of(__m512i words) { return _mm512_castsi512_ps(_mm512_slli_epi32(words, 16)); }
__m512 odd_of(__m512i words) { return _mm512_castsi512_ps(_mm512_and_si512(words, upper_mask())); }
/// The upper halves of both.
__m512i interleave(__m512i even, __m512i odd) {
  return _mm512_mask_blend_epi16(0xaaaaaaaaU, _mm512_srli_epi32(even, 16), odd);
}

struct Noise {
  __m512i weight;
  __m512i m;
  __m512i v;
};

/// Of 16 elements, from element + key.first of each.
Noise draw(__m512i x, __m512i second_key) {
  x = _mm512_xor_si512(x, _mm512_srli_epi32(x, 16));
  x = _mm512_mullo_epi32(x, _mm512_set1_epi32(static_cast<int>(kNoise1)));
  x = _mm512_ternarylogic_epi32(x, _mm512_srli_epi32(x, 15), second_key, 0x96);  // xor of three
  x = _mm512_mullo_epi32(x, _mm512_set1_epi32(static_cast<int>(kNoise2)));
  x = _mm512_xor_si512(x, _mm512_srli_epi32(x, 14));
  const __m512i lower = _mm512_set1_epi32(0xffff);
  const __m512i weight = _mm512_madd_epi16(x, _mm512_set1_epi32(static_cast<int>(kNoise3)));
  return {_mm512_and_si512(weight, lower), _mm512_and_si512(x, lower), _mm512_srli_epi32(x, 16)};
}

/// Gives NaN its bits, and takes the draws from what they could make an infinity.
void settle(Vector& e, Noise& noise) {
  const auto without = [](__m512 value, __m512i draw) {
    const __m512 max_bf16 = _mm512_castsi512_ps(_mm512_set1_epi32(0x7f7f0000));
    return _mm512_maskz_mov_epi32(_mm512_cmp_ps_mask(_mm512_abs_ps(value), max_bf16, _CMP_LT_OQ), draw);
  };
  e = {canonical(e.p), canonical(e.m), canonical(e.v)};
  noise = {without(e.p, noise.weight), without(e.m, noise.m), without(e.v, noise.v)};
}

/// Adds what rounds the upper half away from zero where that is its turn.
template <bool kStochastic>
__m512i round_upper(__m512 value, __m512i draw) {
  const __m512i bits = _mm512_castps_si512(value);
  if constexpr (kStochastic) return _mm512_add_epi32(bits, draw);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  return _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
}

/// Asks for the lines that are due soon.
void prefetch(const void* array) { _mm_prefetch(static_cast<const char*>(array) + kPrefetchBytes, _MM_HINT_T0); }

// One storage format each. prefetch_after() asks for what is due after element i; update() loads, updates and stores
// kLanes elements from `i` on.

struct F32Arrays {
  static constexpr std::int64_t kLanes = 16;
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

  template <class Part>
  void update(std::int64_t i, const Part& part, const VectorScalars& s) const {
    Vector e = detail::update({part.load(p + i), part.load(m + i), part.load(v + i)}, part.load(g + i), s);
    if (is_delicate(e)) e = {canonical(e.p), canonical(e.m), canonical(e.v)};
    part.store(p + i, e.p);
    part.store(m + i, e.m);
    part.store(v + i, e.v);
  }
};

struct SplitArrays {
  static constexpr std::int64_t kLanes = 16;
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

  template <class Part>
  void update(std::int64_t i, const Part& part, const VectorScalars& s) const {
    const auto widen = [](__m256i words) { return _mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16); };
    const __m512i rest = _mm512_cvtepi16_epi32(part.load_16(low + i));
    const __m512 master = _mm512_castsi512_ps(_mm512_add_epi32(widen(part.load_16(high + i)), rest));
    const __m512 gradient = _mm512_castsi512_ps(widen(part.load_16(g + i)));
    Vector e = detail::update({master, part.load(m + i), part.load(v + i)}, gradient, s);
    if (is_delicate(e)) e = {canonical(e.p), canonical(e.m), canonical(e.v)};
    const __m512i bits = _mm512_castps_si512(e.p);
    const __m512i upper = _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x8000)), 16);
    part.store_16(high + i, _mm512_cvtepi32_epi16(upper));
    part.store_16(low + i, _mm512_cvtepi32_epi16(bits));  // their lower halves
    part.store(m + i, e.m);
    part.store(v + i, e.v);
  }
};

/// bf16 moments; bf16 weights with or without the rest of the master.
template <bool kSplit, bool kStochastic>
struct Bf16Arrays {
  static constexpr std::int64_t kLanes = 32;
  Bf16* p;
  std::int16_t* low;
  Bf16* m;
  Bf16* v;
  const Bf16* g;
  __m512i first;  // element + key.first of the even places at i = 0
  __m512i second_key;

  void prefetch_after(std::int64_t i) const {
    prefetch(p + i);
    if constexpr (kSplit) prefetch(low + i);
    prefetch(m + i);
    prefetch(v + i);
    prefetch(g + i);
  }
  template <class Part>
  void update(std::int64_t i, const Part& part, const VectorScalars& s) const {
    const __m512i p_words = part.load_32(p + i), m_words = part.load_32(m + i), v_words = part.load_32(v + i);
    const __m512i g_words = part.load_32(g + i);
    __m512 p_even = even_of(p_words), p_odd = odd_of(p_words);
    if constexpr (kSplit) {
      const __m512i rest = part.load_32(low + i);
      const __m512i rest_even = _mm512_srai_epi32(_mm512_slli_epi32(rest, 16), 16);
      p_even = _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p_even), rest_even));
      p_odd = _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p_odd), _mm512_srai_epi32(rest, 16)));
    }
    Vector even = detail::update({p_even, even_of(m_words), even_of(v_words)}, even_of(g_words), s);
    Vector odd = detail::update({p_odd, odd_of(m_words), odd_of(v_words)}, odd_of(g_words), s);
    const __m512i at = _mm512_add_epi32(first, _mm512_set1_epi32(static_cast<int>(i)));
    Noise even_noise = draw(at, second_key);
    Noise odd_noise = draw(_mm512_add_epi32(at, _mm512_set1_epi32(1)), second_key);
    if (is_delicate(even) || is_delicate(odd)) {
      settle(even, even_noise);
      settle(odd, odd_noise);
    }
    const auto rounded = [](__m512 x, __m512i x_noise, __m512 y, __m512i y_noise) {
      return interleave(round_upper<kStochastic>(x, x_noise), round_upper<kStochastic>(y, y_noise));
    };
    part.store_32(m + i, rounded(even.m, even_noise.m, odd.m, odd_noise.m));
    part.store_32(v + i, rounded(even.v, even_noise.v, odd.v, odd_noise.v));
    if constexpr (kSplit) {
      const __m512i half = _mm512_set1_epi32(0x8000);
      const __m512i even_bits = _mm512_castps_si512(even.p), odd_bits = _mm512_castps_si512(odd.p);
      part.store_32(p + i, interleave(_mm512_add_epi32(even_bits, half), _mm512_add_epi32(odd_bits, half)));
      part.store_32(low + i, _mm512_mask_blend_epi16(0xaaaaaaaaU, even_bits, _mm512_slli_epi32(odd_bits, 16)));
    } else {
      part.store_32(p + i, rounded(even.p, even_noise.weight, odd.p, odd_noise.weight));
    }
  }
};

template <class Arrays>
void update_all(const Arrays& arrays, std::int64_t n, const AdamwScalars& scalars) {
  const VectorScalars s = broadcast(scalars);
  std::int64_t i = 0;
  for (; i + Arrays::kLanes <= n; i += Arrays::kLanes) {
    arrays.prefetch_after(i);
    arrays.update(i, Whole{}, s);
  }
  if (i < n) arrays.update(i, First(n - i), s);
}

template <bool kSplit, bool kStochastic>
void update_bf16(const AdamwRange& range, const AdamwScalars& scalars, const NoiseKey& key) {
  const std::uint32_t first = static_cast<std::uint32_t>(range.element) + key.first;
  const __m512i even = _mm512_slli_epi32(_mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0), 1);
  const Bf16Arrays<kSplit, kStochastic> arrays{static_cast<Bf16*>(range.weight),
                                               range.weight_low,
                                               static_cast<Bf16*>(range.m),
                                               static_cast<Bf16*>(range.v),
                                               static_cast<const Bf16*>(range.gradient),
                                               _mm512_add_epi32(even, _mm512_set1_epi32(static_cast<int>(first))),
                                               _mm512_set1_epi32(static_cast<int>(key.second))};
  update_all(arrays, range.n, scalars);
}

}  // namespace

void adamw_avx512(const AdamwRange& range, const AdamwScalars& scalars, const NoiseKey& key) {
  if (range.dtype == DType::kF32) {
    const F32Arrays arrays{static_cast<float*>(range.weight), static_cast<float*>(range.m),
                           static_cast<float*>(range.v), static_cast<const float*>(range.gradient)};
    return update_all(arrays, range.n, scalars);
  }
  const bool stochastic = scalars.rounding == Rounding::kStochastic;
  switch (range.state) {
    case OptimizerState::kF32: {
      const SplitArrays arrays{static_cast<Bf16*>(range.weight), range.weight_low, static_cast<float*>(range.m),
                               static_cast<float*>(range.v), static_cast<const Bf16*>(range.gradient)};
      return update_all(arrays, range.n, scalars);
    }
    case OptimizerState::kMixed:
      return stochastic ? update_bf16<true, true>(range, scalars, key) : update_bf16<true, false>(range, scalars, key);
    case OptimizerState::kBf16:
      return stochastic ? update_bf16<false, true>(range, scalars, key)
                        : update_bf16<false, false>(range, scalars, key);
  }
}

}  // namespace ferry::detail
