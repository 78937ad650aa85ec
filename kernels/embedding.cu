// SPDX-License-Identifier: Apache-2.0
// Embedding rows: gather forward; backward, one run of equal ids at a time, in order of position.
// Source: torch.nn.functional.embedding and its backward.
#include "kernels/launch_kernel.cuh"
#include "kernels/pack.cuh"

namespace ferry::kernels {
namespace {

// Policy. Forward: four packs per thread, all ids and then all rows in flight. Backward: a thread owns one pack of
// columns of one run and reads eight positions ahead; short runs are many blocks, a long run is bound by latency.
constexpr int kThreads = 256;
constexpr int kForwardPacks = 4;
constexpr int kBackwardThreads = 128;
constexpr int kAhead = 8;

// Kernels.

template <class T, bool kVector>
__global__ void __launch_bounds__(kThreads) embedding_forward_kernel(const EmbeddingForwardArgs args) {
  constexpr int kElems = Pack<T>::kElems;
  Pack<T> packs[kForwardPacks];
  PackPlace places[kForwardPacks];
  std::int64_t ids[kForwardPacks];
#pragma unroll
  for (int u = 0; u < kForwardPacks; ++u) {
    const std::int64_t index = (std::int64_t{blockIdx.x} * kForwardPacks + u) * kThreads + threadIdx.x;
    places[u] = place_of<kElems, kVector>(index, args.n_rows, args.width);
    ids[u] = places[u].count > 0 ? args.ids[places[u].row] : 0;
  }
#pragma unroll
  for (int u = 0; u < kForwardPacks; ++u) {
    const T* const row = static_cast<const T*>(args.table) + ids[u] * args.width;
    load<kVector>(packs[u], row + places[u].column, places[u].count);
  }
#pragma unroll
  for (int u = 0; u < kForwardPacks; ++u) {
    T* const row = static_cast<T*>(args.y) + places[u].row * args.width;
    store<kVector>(row + places[u].column, places[u].count, packs[u]);
  }
}

/// Block (k, columns): the run of equal ids that begins at sorted position k, if one does.
template <class T, bool kVector>
__global__ void __launch_bounds__(kBackwardThreads)
    embedding_backward_kernel(const EmbeddingBackwardArgs args, std::int64_t n_column_blocks) {
  constexpr int kElems = Pack<T>::kElems;
  const std::int64_t begin = blockIdx.x / n_column_blocks;
  const std::int64_t column_block = blockIdx.x - begin * n_column_blocks;
  const std::int32_t id = args.ids[args.order[begin]];
  if (begin > 0 && args.ids[args.order[begin - 1]] == id) return;
  const std::int64_t column = (column_block * kBackwardThreads + threadIdx.x) * kElems;
  const int count = count_of<kElems, kVector>(args.width - column);
  const T* const d_y = static_cast<const T*>(args.d_y) + column;
  float sum[kElems] = {};
  bool is_same = true;
  for (std::int64_t k = begin; is_same && k < args.n_rows; k += kAhead) {
    Pack<T> packs[kAhead];
    std::int32_t positions[kAhead];
    std::int32_t ids[kAhead];
    int counts[kAhead];
#pragma unroll
    for (int u = 0; u < kAhead; ++u) positions[u] = args.order[k + u < args.n_rows ? k + u : begin];
#pragma unroll
    for (int u = 0; u < kAhead; ++u) ids[u] = args.ids[positions[u]];
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      is_same = is_same && k + u < args.n_rows && ids[u] == id;
      counts[u] = is_same ? count : 0;
      load<kVector>(packs[u], d_y + positions[u] * args.width, counts[u]);
    }
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      float values[kElems];
      unpack(packs[u], values);
#pragma unroll
      for (int i = 0; i < kElems; ++i) sum[i] = i < counts[u] ? sum[i] + values[i] : sum[i];
    }
  }
  T* const d_row = static_cast<T*>(args.d_table) + id * args.width + column;
  float values[kElems];
  load_values<kVector>(values, d_row, count);
#pragma unroll
  for (int i = 0; i < kElems; ++i) values[i] += sum[i];
  store_values<kVector>(d_row, count, values);
}

}  // namespace

// Launchers.

cudaError_t launch_embedding_forward(const EmbeddingForwardArgs& args, cudaStream_t stream) {
  const std::int64_t n_packs = args.n_rows * ceil_div(args.width, pack_elems(args.type));
  const LaunchShape shape = {ceil_div(n_packs, std::int64_t{kThreads} * kForwardPacks), kThreads};
  const bool is_vector =
      RowCheck{args.n_rows, args.width, args.type}.whole_packs() && is_aligned(args.table) && is_aligned(args.y);
  return with_type(args.type, is_vector, [&]<class T, bool kVector>() {
    return launch(embedding_forward_kernel<T, kVector>, shape, stream, args);
  });
}

cudaError_t launch_embedding_backward(const EmbeddingBackwardArgs& args, cudaStream_t stream) {
  const std::int64_t n_column_blocks = ceil_div(ceil_div(args.width, pack_elems(args.type)), kBackwardThreads);
  const LaunchShape shape = {args.n_rows * n_column_blocks, kBackwardThreads};
  const bool is_vector =
      RowCheck{args.n_rows, args.width, args.type}.whole_packs() && is_aligned(args.d_table) && is_aligned(args.d_y);
  return with_type(args.type, is_vector, [&]<class T, bool kVector>() {
    return launch(embedding_backward_kernel<T, kVector>, shape, stream, args, n_column_blocks);
  });
}

}  // namespace ferry::kernels
