// SPDX-License-Identifier: Apache-2.0
// SwiGLU forward and backward on rows with strides: one pass, a pack per thread and step.
// Source: Shazeer 2020, arXiv:2002.05202, eq. 6 and its derivative.
#include "kernels/launch_kernel.cuh"
#include "kernels/pack.cuh"

namespace ferry::kernels {
namespace {

// Policy. A thread takes packs a block apart, all loads before the first use: 4 (forward) and 3 (backward) of 16 bytes
// in flight, enough at half occupancy to cover the latency of memory.
constexpr int kThreads = 256;
constexpr int kForwardPacks = 2;
constexpr int kBackwardPacks = 1;

// Maths.

/// 1 / (1 + exp(-x)), within a few units in the last place; 0 and 1 at the ends.
__device__ __forceinline__ float sigmoid(float x) { return __fdividef(1.0F, 1.0F + expf(-x)); }

// Kernels.

template <class T, bool kVector>
__global__ void __launch_bounds__(kThreads) swiglu_forward_kernel(const SwigluForwardArgs args) {
  constexpr int kElems = Pack<T>::kElems;
  Pack<T> gates[kForwardPacks];
  Pack<T> ups[kForwardPacks];
  PackPlace places[kForwardPacks];
#pragma unroll
  for (int u = 0; u < kForwardPacks; ++u) {
    const std::int64_t index = (std::int64_t{blockIdx.x} * kForwardPacks + u) * kThreads + threadIdx.x;
    const PackPlace place = places[u] = place_of<kElems, kVector>(index, args.n_rows, args.width);
    const T* const gate = static_cast<const T*>(args.gate.data) + place.row * args.gate.stride + place.column;
    const T* const up = static_cast<const T*>(args.up.data) + place.row * args.up.stride + place.column;
    load<kVector>(gates[u], gate, place.count);
    load<kVector>(ups[u], up, place.count);
  }
#pragma unroll
  for (int u = 0; u < kForwardPacks; ++u) {
    float gate[kElems];
    float up[kElems];
    unpack(gates[u], gate);
    unpack(ups[u], up);
#pragma unroll
    for (int i = 0; i < kElems; ++i) gate[i] *= sigmoid(gate[i]) * up[i];
    T* const y = static_cast<T*>(args.y.data) + places[u].row * args.y.stride + places[u].column;
    store_values<kVector>(y, places[u].count, gate);
  }
}

/// kAgain: y is wanted.
template <class T, bool kVector, bool kAgain>
__global__ void __launch_bounds__(kThreads) swiglu_backward_kernel(const SwigluBackwardArgs args) {
  constexpr int kElems = Pack<T>::kElems;
  Pack<T> d_ys[kBackwardPacks];
  Pack<T> gates[kBackwardPacks];
  Pack<T> ups[kBackwardPacks];
  PackPlace places[kBackwardPacks];
#pragma unroll
  for (int u = 0; u < kBackwardPacks; ++u) {
    const std::int64_t index = (std::int64_t{blockIdx.x} * kBackwardPacks + u) * kThreads + threadIdx.x;
    const PackPlace place = places[u] = place_of<kElems, kVector>(index, args.n_rows, args.width);
    const T* const d_y = static_cast<const T*>(args.d_y.data) + place.row * args.d_y.stride + place.column;
    const T* const gate = static_cast<const T*>(args.gate.data) + place.row * args.gate.stride + place.column;
    const T* const up = static_cast<const T*>(args.up.data) + place.row * args.up.stride + place.column;
    load<kVector>(d_ys[u], d_y, place.count);
    load<kVector>(gates[u], gate, place.count);
    load<kVector>(ups[u], up, place.count);
  }
#pragma unroll
  for (int u = 0; u < kBackwardPacks; ++u) {
    float d_y[kElems];
    float gate[kElems];
    float up[kElems];
    unpack(d_ys[u], d_y);
    unpack(gates[u], gate);
    unpack(ups[u], up);
#pragma unroll
    for (int i = 0; i < kElems; ++i) {
      const float g = gate[i];
      const float s = sigmoid(g);
      const float d = d_y[i];
      if constexpr (kAgain) d_y[i] = g * (s * up[i]);
      gate[i] = d * up[i] * (s * (1.0F + g * (1.0F - s)));
      up[i] = d * g * s;
    }
    const PackPlace place = places[u];
    if constexpr (kAgain) {
      store_values<kVector>(static_cast<T*>(args.y.data) + place.row * args.y.stride + place.column, place.count, d_y);
    }
    store_values<kVector>(static_cast<T*>(args.d_gate.data) + place.row * args.d_gate.stride + place.column,
                          place.count, gate);
    store_values<kVector>(static_cast<T*>(args.d_up.data) + place.row * args.d_up.stride + place.column, place.count,
                          up);
  }
}

LaunchShape shape_of(std::int64_t n_rows, std::int64_t width, Type type, int packs_per_thread) {
  const std::int64_t n_packs = n_rows * ceil_div(width, pack_elems(type));
  return {ceil_div(n_packs, std::int64_t{kThreads} * packs_per_thread), kThreads};
}

}  // namespace

// Launchers.

cudaError_t launch_swiglu_forward(const SwigluForwardArgs& args, cudaStream_t stream) {
  const RowCheck rows = {args.n_rows, args.width, args.type};
  const bool is_vector = rows.whole_packs() && rows.aligned(args.gate) && rows.aligned(args.up) && rows.aligned(args.y);
  const LaunchShape shape = shape_of(args.n_rows, args.width, args.type, kForwardPacks);
  return with_type(args.type, is_vector, [&]<class T, bool kVector>() {
    return launch(swiglu_forward_kernel<T, kVector>, shape, stream, args);
  });
}

cudaError_t launch_swiglu_backward(const SwigluBackwardArgs& args, cudaStream_t stream) {
  const RowCheck rows = {args.n_rows, args.width, args.type};
  const bool is_vector = rows.whole_packs() && rows.aligned(args.d_y) && rows.aligned(args.gate) &&
                         rows.aligned(args.up) && rows.aligned(args.d_gate) && rows.aligned(args.d_up) &&
                         rows.aligned(args.y);
  const LaunchShape shape = shape_of(args.n_rows, args.width, args.type, kBackwardPacks);
  return with_type(args.type, is_vector, [&]<class T, bool kVector>() {
    return args.y.data != nullptr ? launch(swiglu_backward_kernel<T, kVector, true>, shape, stream, args)
                                  : launch(swiglu_backward_kernel<T, kVector, false>, shape, stream, args);
  });
}

}  // namespace ferry::kernels
