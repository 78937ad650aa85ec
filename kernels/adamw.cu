// SPDX-License-Identifier: Apache-2.0
// AdamW on the device, with the bits of adamw_scalar.cpp: the same IEEE operations in the same order.
// Source: Loshchilov & Hutter 2019, arXiv:1711.05101, algorithm 2; order of operations of torch.optim.AdamW.
#include "kernels/launch_kernel.cuh"
#include "kernels/pack.cuh"

namespace ferry::kernels {
namespace {

// Policy. Eight elements per thread: 64 (bf16 state) to 128 bytes in flight, which covers the latency of memory at half
// occupancy.
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
  const float denom = __fadd_rn(__fdiv_rn(__fsqrt_rn(e.v), s.sqrt_correction2), s.eps);
  e.p = __fmaf_rn(-s.step_size, __fdiv_rn(e.m, denom), e.p);
  e = {canonical(e.p), canonical(e.m), canonical(e.v)};
}

/// The f32 master of a streamed bf16 half and its signed rest, and back.
__device__ __forceinline__ float join(std::uint32_t high, std::uint32_t low) {
  const auto rest = static_cast<std::int16_t>(low);
  return __uint_as_float((high << 16) + static_cast<std::uint32_t>(std::int32_t{rest}));
}
__device__ __forceinline__ std::uint32_t high_half(float master) { return (__float_as_uint(master) + 0x8000U) >> 16; }

// Kernels.

/// Weights of one type T with moments of the same type.
template <class T, bool kVector>
__global__ void __launch_bounds__(kThreads) adamw_kernel(const AdamwArgs args) {
  const std::int64_t i = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) * kElems;
  const int count = count_of<kElems>(args.n - i);
  auto* const weight = static_cast<T*>(args.weight) + i;
  auto* const first = static_cast<T*>(args.m) + i;
  auto* const second = static_cast<T*>(args.v) + i;
  float p[kElems];
  float m[kElems];
  float v[kElems];
  float g[kElems];
  load_values<kVector>(p, weight, count);
  load_values<kVector>(m, first, count);
  load_values<kVector>(v, second, count);
  load_values<kVector>(g, static_cast<const T*>(args.gradient) + i, count);
#pragma unroll
  for (int j = 0; j < kElems; ++j) {
    Element e = {p[j], m[j], v[j]};
    update(e, g[j], args.scalars);
    p[j] = e.p;
    m[j] = e.m;
    v[j] = e.v;
  }
  store_values<kVector>(weight, count, p);
  store_values<kVector>(first, count, m);
  store_values<kVector>(second, count, v);
}

/// bf16 weights that are the upper halves of f32 masters, moments in f32.
template <bool kVector>
__global__ void __launch_bounds__(kThreads) adamw_split_kernel(const AdamwArgs args) {
  using Halves = Pack<__nv_bfloat16, kElems>;  // 16-bit words of any meaning
  const std::int64_t i = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) * kElems;
  const int count = count_of<kElems>(args.n - i);
  auto* const weight = static_cast<__nv_bfloat16*>(args.weight) + i;
  auto* const weight_low = reinterpret_cast<__nv_bfloat16*>(args.weight_low) + i;
  auto* const first = static_cast<float*>(args.m) + i;
  auto* const second = static_cast<float*>(args.v) + i;
  Halves high;
  Halves low;
  float m[kElems];
  float v[kElems];
  float g[kElems];
  load<kVector>(high, weight, count);
  load<kVector>(low, weight_low, count);
  load_values<kVector>(m, first, count);
  load_values<kVector>(v, second, count);
  load_values<kVector>(g, static_cast<const __nv_bfloat16*>(args.gradient) + i, count);
#pragma unroll
  for (int w = 0; w < Halves::kWords; ++w) {
    const int j = 2 * w;
    Element even = {join(high.words[w], low.words[w]), m[j], v[j]};
    Element odd = {join(high.words[w] >> 16, low.words[w] >> 16), m[j + 1], v[j + 1]};
    update(even, g[j], args.scalars);
    update(odd, g[j + 1], args.scalars);
    high.words[w] = high_half(even.p) | (high_half(odd.p) << 16);
    low.words[w] = (__float_as_uint(even.p) & 0xffffU) | (__float_as_uint(odd.p) << 16);
    m[j] = even.m;
    v[j] = even.v;
    m[j + 1] = odd.m;
    v[j + 1] = odd.v;
  }
  store<kVector>(weight, count, high);
  store<kVector>(weight_low, count, low);
  store_values<kVector>(first, count, m);
  store_values<kVector>(second, count, v);
}

}  // namespace

// Launchers.

cudaError_t launch_adamw(const AdamwArgs& args, cudaStream_t stream) {
  const LaunchShape shape = {ceil_div(args.n, std::int64_t{kThreads} * kElems), kThreads};
  const bool is_vector = is_aligned(args.weight) && is_aligned(args.weight_low) && is_aligned(args.m) &&
                         is_aligned(args.v) && is_aligned(args.gradient);
  if (args.type == Type::kBf16 && args.state == Type::kF32) {
    return launch(is_vector ? adamw_split_kernel<true> : adamw_split_kernel<false>, shape, stream, args);
  }
  if (args.type != args.state) return cudaErrorInvalidValue;
  return with_type(args.type, is_vector,
                   [&]<class T, bool kVector>() { return launch(adamw_kernel<T, kVector>, shape, stream, args); });
}

}  // namespace ferry::kernels
