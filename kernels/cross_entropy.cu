// SPDX-License-Identifier: Apache-2.0
// Cross-entropy over vocabulary chunks: running log-sum-exp, mean loss, gradient in place.
// Source: Milakov & Gimelshein 2018, arXiv:1805.02867, algorithm 3.
#include <math_constants.h>

#include <cfloat>

#include "kernels/launch_kernel.cuh"
#include "kernels/pack.cuh"
#include "kernels/reduce.cuh"

namespace ferry::kernels {
namespace {

// Policy. Forward: a block per row; each thread keeps its own maximum and sum over its packs, four loads in flight, one
// rescaling for the four. Backward: packs of all rows counted through, so that any width fills the device.
constexpr int kThreads = 256;
constexpr int kChunkPacks = 4;
constexpr int kBackwardPacks = 2;
constexpr int kLossThreads = 1024;

// Maths.

/// sum = total of exp(x - maximum) over what was seen so far. The maximum starts at the lowest finite value: minus
/// infinity then has a difference to it, and needs no case of its own.
struct RunningSum {
  float maximum = -FLT_MAX;
  float sum = 0;
};

/// exp(x) for x <= 0 with one instruction: relative error 2^-22 + |x| 2^-24, where the weight of a term is exp(x).
__device__ __forceinline__ float exp_below_zero(float x) {
  constexpr float kLog2E = 1.44269504F;
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * kLog2E));
  return power;
}

/// NaN is passed over by fmaxf, and comes back through exp.
__device__ __forceinline__ RunningSum merge(RunningSum a, RunningSum b) {
  const float maximum = fmaxf(a.maximum, b.maximum);
  const float from_a = a.sum * expf(a.maximum - maximum);
  const float from_b = b.sum * expf(b.maximum - maximum);
  return {maximum, from_a + from_b};
}

__device__ __forceinline__ RunningSum warp_merge(RunningSum state) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    state = merge(state,
                  {__shfl_xor_sync(kWholeWarp, state.maximum, offset), __shfl_xor_sync(kWholeWarp, state.sum, offset)});
  }
  return state;
}

template <int kCount>
__device__ __forceinline__ void add_values(RunningSum& state, const float (&values)[kCount]) {
  float maximum = state.maximum;
#pragma unroll
  for (int i = 0; i < kCount; ++i) maximum = fmaxf(maximum, values[i]);
  state.sum *= exp_below_zero(state.maximum - maximum);
  state.maximum = maximum;
#pragma unroll
  for (int i = 0; i < kCount; ++i) state.sum += exp_below_zero(values[i] - maximum);
}

/// Elements from `count` on become minus infinity, which adds nothing.
template <int kCount>
__device__ __forceinline__ void pad(float (&values)[kCount], int count) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) values[i] = i < count ? values[i] : -CUDART_INF_F;
}

// Kernels.

/// The running sum of one thread's part of a row.
template <class T, bool kVector>
__device__ __forceinline__ RunningSum thread_sum(const T* logits, std::int64_t width) {
  constexpr int kElems = Pack<T>::kElems;
  RunningSum state;
  for (std::int64_t base = std::int64_t{threadIdx.x} * kElems; base < width; base += kChunkPacks * kThreads * kElems) {
    Pack<T> packs[kChunkPacks];
    float values[kChunkPacks * kElems];
#pragma unroll
    for (int u = 0; u < kChunkPacks; ++u) {
      const std::int64_t column = base + u * kThreads * kElems;
      load<kVector>(packs[u], logits + column, count_of<kElems, kVector>(width - column));
    }
#pragma unroll
    for (int u = 0; u < kChunkPacks; ++u) {
      float part[kElems];
      unpack(packs[u], part);
      const int count = count_of<kElems, kVector>(width - base - u * kThreads * kElems);
      if (count < kElems) pad(part, count);
#pragma unroll
      for (int i = 0; i < kElems; ++i) values[u * kElems + i] = part[i];
    }
    add_values(state, values);
  }
  return state;
}

template <class T, bool kVector>
__global__ void __launch_bounds__(kThreads) cross_entropy_chunk_kernel(const CrossEntropyChunkArgs args) {
  __shared__ RunningSum warp_sums[kThreads / kWarp];
  const std::int64_t row = blockIdx.x;
  const T* const logits = static_cast<const T*>(args.logits.data) + row * args.logits.stride;
  RunningSum state = warp_merge(thread_sum<T, kVector>(logits, args.width));
  if (threadIdx.x % kWarp == 0) warp_sums[threadIdx.x / kWarp] = state;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int warp = 1; warp < kThreads / kWarp; ++warp) state = merge(state, warp_sums[warp]);
  const bool is_first = args.first_token == 0;
  if (!is_first) state = merge(state, {args.lse[row], 1.0F});
  args.lse[row] = state.maximum + logf(state.sum);
  const std::int64_t target = args.targets[row] - args.first_token;
  if (target >= 0 && target < args.width) {
    args.target_logit[row] = to_float(logits[target]);
  } else if (is_first) {
    args.target_logit[row] = 0;
  }
}

__global__ void __launch_bounds__(kLossThreads) cross_entropy_loss_kernel(const CrossEntropyLossArgs args) {
  __shared__ float warp_sums[kLossThreads / kWarp];
  float total = 0;
#pragma unroll 4
  for (std::int64_t i = threadIdx.x; i < args.n_rows; i += kLossThreads) {
    total += args.targets[i] != kIgnoredTarget ? args.lse[i] - args.target_logit[i] : 0.0F;
  }
  total = block_sum(total, warp_sums);
  if (threadIdx.x == 0) *args.loss = args.scale * total;
}

template <class T, bool kVector>
__global__ void __launch_bounds__(kThreads) cross_entropy_backward_kernel(const CrossEntropyBackwardArgs args) {
  constexpr int kElems = Pack<T>::kElems;
  Pack<T> packs[kBackwardPacks];
  PackPlace places[kBackwardPacks];
  std::int32_t targets[kBackwardPacks];
  float lses[kBackwardPacks];
#pragma unroll
  for (int u = 0; u < kBackwardPacks; ++u) {
    const std::int64_t index = (std::int64_t{blockIdx.x} * kBackwardPacks + u) * kThreads + threadIdx.x;
    const PackPlace place = places[u] = place_of<kElems, kVector>(index, args.n_rows, args.width);
    const T* const logits = static_cast<const T*>(args.logits.data) + place.row * args.logits.stride + place.column;
    load<kVector>(packs[u], logits, place.count);
    targets[u] = place.count > 0 ? args.targets[place.row] : kIgnoredTarget;
    lses[u] = place.count > 0 ? args.lse[place.row] : 0.0F;
  }
#pragma unroll
  for (int u = 0; u < kBackwardPacks; ++u) {
    const PackPlace place = places[u];
    const std::int64_t target = targets[u] - args.first_token - place.column;
    const int hit = target >= 0 && target < kElems ? static_cast<int>(target) : -1;
    const bool counts = targets[u] != kIgnoredTarget;
    float values[kElems];
    unpack(packs[u], values);
#pragma unroll
    for (int i = 0; i < kElems; ++i) {
      const float probability = expf(values[i] - lses[u]);
      const float difference = i == hit ? probability - 1.0F : probability;
      values[i] = counts ? args.scale * difference : 0.0F;
    }
    T* const d_logits = static_cast<T*>(args.logits.data) + place.row * args.logits.stride + place.column;
    store_values<kVector>(d_logits, place.count, values);
  }
}

}  // namespace

// Launchers.

cudaError_t launch_cross_entropy_chunk(const CrossEntropyChunkArgs& args, cudaStream_t stream) {
  const RowCheck rows = {args.n_rows, args.width, args.type};
  const bool is_vector = rows.whole_packs() && rows.aligned(args.logits);
  return with_type(args.type, is_vector, [&]<class T, bool kVector>() {
    return launch(cross_entropy_chunk_kernel<T, kVector>, {args.n_rows, kThreads}, stream, args);
  });
}

cudaError_t launch_cross_entropy_loss(const CrossEntropyLossArgs& args, cudaStream_t stream) {
  return launch(cross_entropy_loss_kernel, {1, kLossThreads}, stream, args);
}

cudaError_t launch_cross_entropy_backward(const CrossEntropyBackwardArgs& args, cudaStream_t stream) {
  const std::int64_t n_packs = args.n_rows * ceil_div(args.width, pack_elems(args.type));
  const LaunchShape shape = {ceil_div(n_packs, std::int64_t{kThreads} * kBackwardPacks), kThreads};
  const RowCheck rows = {args.n_rows, args.width, args.type};
  const bool is_vector = rows.whole_packs() && rows.aligned(args.logits);
  return with_type(args.type, is_vector, [&]<class T, bool kVector>() {
    return launch(cross_entropy_backward_kernel<T, kVector>, shape, stream, args);
  });
}

}  // namespace ferry::kernels
