// SPDX-License-Identifier: Apache-2.0
// AdamW on the device, with the bits of adamw_scalar.cpp: the same IEEE operations in the same order.
// Source: Loshchilov & Hutter 2019, arXiv:1711.05101, algorithm 2; order of operations of torch.optim.AdamW. Stochastic
// rounding: Gupta et al. 2015, arXiv:1502.02551, section 3.
#include "kernels/launch_kernel.cuh"
#include "kernels/pack.cuh"

namespace ferry::kernels {
namespace {

// Policy. Eight elements per thread: 64 (bf16 state) to 128 bytes (f32) in flight, which covers the latency of memory
// at half occupancy.
constexpr int kThreads = 256;
constexpr int kElems = 8;

// Maths. Each operation is named with its rounding: the compiler may fuse or reorder none of them.

struct Element {
  float p;
  float m;
  float v;
};

constexpr std::uint32_t kNan = 0x7fc00000U;

__device__ __forceinline__ float canonical(float value) { return isnan(value) ? __uint_as_float(kNan) : value; }

__device__ __forceinline__ void update(Element& e, float g, const AdamwScalars& s) {
  g = __fmul_rn(s.gradient_scale, g);
  e.p = __fmul_rn(e.p, s.decay);
  e.m = __fmaf_rn(s.one_minus_beta1, __fsub_rn(g, e.m), e.m);
  e.v = __fmaf_rn(__fmul_rn(s.one_minus_beta2, g), g, __fmul_rn(s.beta2, e.v));
  const float denom = __fmaf_rn(__fsqrt_rn(e.v), s.inverse_sqrt_correction2, s.eps);
  e.p = __fmaf_rn(-s.step_size, __fdiv_rn(e.m, denom), e.p);
  e = {canonical(e.p), canonical(e.m), canonical(e.v)};
}

/// The f32 master of a streamed bf16 half and its signed rest, and back.
__device__ __forceinline__ float join(std::uint32_t high, std::uint32_t low) {
  const auto rest = static_cast<std::int16_t>(low);
  return __uint_as_float((high << 16) + static_cast<std::uint32_t>(std::int32_t{rest}));
}
__device__ __forceinline__ std::uint32_t high_half(float master) { return (__float_as_uint(master) + 0x8000U) >> 16; }

// 16 random bits each, as rounding_draws in optim/adamw_kernels.h.
struct Draws {
  std::uint32_t weight;
  std::uint32_t m;
  std::uint32_t v;
};

__device__ __forceinline__ Draws draws_of(const AdamwNoise& noise, std::uint32_t element) {
  std::uint32_t x = element + noise.first_key;
  x ^= x >> 16;
  x *= 0x7feb352dU;
  x ^= (x >> 15) ^ noise.second_key;
  x *= 0x846ca68bU;
  x ^= x >> 14;
  const std::uint32_t m = x & 0xffffU;
  const std::uint32_t v = x >> 16;
  return {(m * 0x1b51U + v * 0xac4dU) & 0xffffU, m, v};
}

/// The bf16 below or above, as f32.
__device__ __forceinline__ float round_stochastic(float value, std::uint32_t draw) {
  const float max_bf16 = __uint_as_float(0x7f7f0000U);
  const std::uint32_t noise = fabsf(value) < max_bf16 ? draw : 0U;  // not for NaN
  return __uint_as_float((__float_as_uint(value) + noise) & 0xffff0000U);
}

// Masters of eight neighbours.

using Halves = Pack<__nv_bfloat16, kElems>;  // 16-bit words of any meaning

template <bool kVector>
__device__ __forceinline__ void load_masters(float (&p)[kElems], const AdamwArgs& args, std::int64_t i, int count) {
  Halves high;
  Halves low;
  load<kVector>(high, static_cast<const __nv_bfloat16*>(args.weight) + i, count);
  load<kVector>(low, reinterpret_cast<const __nv_bfloat16*>(args.weight_low) + i, count);
#pragma unroll
  for (int w = 0; w < Halves::kWords; ++w) {
    p[2 * w] = join(high.words[w], low.words[w]);
    p[2 * w + 1] = join(high.words[w] >> 16, low.words[w] >> 16);
  }
}

template <bool kVector>
__device__ __forceinline__ void store_masters(const AdamwArgs& args, std::int64_t i, int count,
                                              const float (&p)[kElems]) {
  Halves high;
  Halves low;
#pragma unroll
  for (int w = 0; w < Halves::kWords; ++w) {
    const float even = p[2 * w];
    const float odd = p[2 * w + 1];
    high.words[w] = high_half(even) | (high_half(odd) << 16);
    low.words[w] = (__float_as_uint(even) & 0xffffU) | (__float_as_uint(odd) << 16);
  }
  store<kVector>(static_cast<__nv_bfloat16*>(args.weight) + i, count, high);
  store<kVector>(reinterpret_cast<__nv_bfloat16*>(args.weight_low) + i, count, low);
}

// Kernel.

/// Weights and gradients of type T, moments of type Moment. kSplit: the weights are the upper halves of f32 masters.
/// kStochastic: how what is bf16 is rounded.
template <class T, class Moment, bool kSplit, bool kStochastic, bool kVector>
__global__ void __launch_bounds__(kThreads) adamw_kernel(const AdamwArgs args) {
  const std::int64_t i = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) * kElems;
  const int count = count_of<kElems>(args.n - i);
  auto* const weight = static_cast<T*>(args.weight) + i;
  auto* const first = static_cast<Moment*>(args.m) + i;
  auto* const second = static_cast<Moment*>(args.v) + i;
  float p[kElems];
  float m[kElems];
  float v[kElems];
  float g[kElems];
  if constexpr (kSplit) {
    load_masters<kVector>(p, args, i, count);
  } else {
    load_values<kVector>(p, weight, count);
  }
  load_values<kVector>(m, first, count);
  load_values<kVector>(v, second, count);
  load_values<kVector>(g, static_cast<const T*>(args.gradient) + i, count);
#pragma unroll
  for (int j = 0; j < kElems; ++j) {
    Element e = {p[j], m[j], v[j]};
    update(e, g[j], args.scalars);
    if constexpr (kStochastic) {
      const Draws draws = draws_of(args.noise, args.noise.element + static_cast<std::uint32_t>(i + j));
      if constexpr (!kSplit) e.p = round_stochastic(e.p, draws.weight);
      e.m = round_stochastic(e.m, draws.m);
      e.v = round_stochastic(e.v, draws.v);
    }
    p[j] = e.p;
    m[j] = e.m;
    v[j] = e.v;
  }
  if constexpr (kSplit) {
    store_masters<kVector>(args, i, count, p);
  } else {
    store_values<kVector>(weight, count, p);
  }
  store_values<kVector>(first, count, m);
  store_values<kVector>(second, count, v);
}

template <class T, class Moment, bool kSplit, bool kStochastic>
cudaError_t launch_format(const AdamwArgs& args, cudaStream_t stream) {
  const LaunchShape shape = {ceil_div(args.n, std::int64_t{kThreads} * kElems), kThreads};
  const bool is_vector = is_aligned(args.weight) && is_aligned(args.weight_low) && is_aligned(args.m) &&
                         is_aligned(args.v) && is_aligned(args.gradient);
  return launch(is_vector ? adamw_kernel<T, Moment, kSplit, kStochastic, true>
                          : adamw_kernel<T, Moment, kSplit, kStochastic, false>,
                shape, stream, args);
}

template <bool kSplit>
cudaError_t launch_bf16(const AdamwArgs& args, cudaStream_t stream) {
  return args.noise.stochastic ? launch_format<__nv_bfloat16, __nv_bfloat16, kSplit, true>(args, stream)
                               : launch_format<__nv_bfloat16, __nv_bfloat16, kSplit, false>(args, stream);
}

}  // namespace

// Launchers.

cudaError_t launch_adamw(const AdamwArgs& args, cudaStream_t stream) {
  const bool is_split = args.weight_low != nullptr;
  if (args.type == Type::kF32) {
    if (args.state != Type::kF32 || is_split) return cudaErrorInvalidValue;
    return launch_format<float, float, false, false>(args, stream);
  }
  if (args.state == Type::kBf16) return is_split ? launch_bf16<true>(args, stream) : launch_bf16<false>(args, stream);
  if (!is_split) return cudaErrorInvalidValue;
  return launch_format<__nv_bfloat16, float, true, false>(args, stream);
}

}  // namespace ferry::kernels
