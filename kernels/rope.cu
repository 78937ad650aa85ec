// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding in place, half-split layout: each thread turns a pack of one half with its partner.
// Source: Su et al. 2021, arXiv:2104.09864, eq. 34; layout of transformers' apply_rotary_pos_emb.
#include "kernels/launch_kernel.cuh"
#include "kernels/pack.cuh"

namespace ferry::kernels {
namespace {

// Policy. One pair of packs per thread: two loads of x and, from the cache, up to four of the tables.
constexpr int kThreads = 256;

// Kernels.

template <class T, bool kVector>
__global__ void __launch_bounds__(kThreads) rope_kernel(const RopeArgs args) {
  constexpr int kElems = Pack<T>::kElems;
  const std::int64_t half = args.head_width / 2;
  const std::int64_t index = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const PackPlace place = place_of<kElems, kVector>(index, args.n_batch * args.length * args.n_heads, half);
  const std::int64_t token = place.row / args.n_heads;
  const std::int64_t head = place.row - token * args.n_heads;
  const std::int64_t batch = token / args.length;
  const std::int64_t position = token - batch * args.length;
  T* const low = static_cast<T*>(args.x) + batch * args.batch_stride + position * args.position_stride +
                 head * args.head_stride + place.column;
  T* const high = low + half;
  float a[kElems];
  float b[kElems];
  float cosine[kElems];
  float sine[kElems];
  load_values<kVector>(a, low, place.count);
  load_values<kVector>(b, high, place.count);
  load_values<kVector>(cosine, args.cos + position * half + place.column, place.count);
  load_values<kVector>(sine, args.sin + position * half + place.column, place.count);
#pragma unroll
  for (int i = 0; i < kElems; ++i) {
    const float s = args.inverse ? -sine[i] : sine[i];
    const float turned_low = a[i] * cosine[i] - b[i] * s;
    b[i] = b[i] * cosine[i] + a[i] * s;
    a[i] = turned_low;
  }
  store_values<kVector>(low, place.count, a);
  store_values<kVector>(high, place.count, b);
}

/// Whether each half of a head, and each row of the tables, is whole packs that begin on multiples of 16 bytes.
bool is_vector(const RopeArgs& args) {
  const std::int64_t half = args.head_width / 2;
  const RowCheck tables = {args.length, half, Type::kF32};
  const auto aligned = [&](std::int64_t extent, std::int64_t stride) {
    return RowCheck{extent, half, args.type}.aligned(args.x, stride);
  };
  return half % pack_elems(args.type) == 0 && tables.aligned(args.cos) && tables.aligned(args.sin) &&
         aligned(args.n_batch, args.batch_stride) && aligned(args.length, args.position_stride) &&
         aligned(args.n_heads, args.head_stride);
}

}  // namespace

// Launchers.

cudaError_t launch_rope(const RopeArgs& args, cudaStream_t stream) {
  const std::int64_t n_heads = args.n_batch * args.length * args.n_heads;
  const std::int64_t n_packs = n_heads * ceil_div(args.head_width / 2, pack_elems(args.type));
  return with_type(args.type, is_vector(args), [&]<class T, bool kVector>() {
    return launch(rope_kernel<T, kVector>, {ceil_div(n_packs, kThreads), kThreads}, stream, args);
  });
}

}  // namespace ferry::kernels
