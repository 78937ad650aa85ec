// SPDX-License-Identifier: Apache-2.0
// RMSNorm forward, with an optional residual addition, and backward: each row is read once.
// Source: Zhang & Sennrich 2019, arXiv:1910.07467, eq. 4 and its derivative.
#include <algorithm>

#include "kernels/launch_kernel.cuh"
#include "kernels/pack.cuh"
#include "kernels/reduce.cuh"

namespace ferry::kernels {
namespace {

// Policy. Threads of a row: as many as keep the whole row in registers between its two uses, kForwardPacks or
// kBackwardPacks each, a multiple of a warp and kForwardThreads or kBackwardThreads at most; what is wider is read
// again (from the cache).
//
// Backward: rows are cut into at most kMaxRowBlocks blocks, two for each of the 132 multiprocessors of an H200, the
// same on every device so that the bits are the same. Blocks have kBackwardBlock threads, or those of one wider row;
// while a row is worked on, the next is on its way, which takes up to 128 registers a thread (H200, 32768 x 2048 bf16:
// this reaches 0.86 of a copy's speed; three blocks of 80 registers without it 0.77). Groups of threads in a block take
// its rows in turn, each with sums of d_weight of its own: in registers, and for what is wider in shared memory, or,
// where a row of sums does not fit (the block then has one group), in the scratch.
constexpr int kForwardThreads = 256;
constexpr int kForwardPacks = 4;
constexpr int kBackwardThreads = 512;
constexpr int kBackwardBlock = 256;
constexpr int kBackwardPacks = 2;
constexpr std::int64_t kMaxRowBlocks = 132 * 2;
constexpr std::int64_t kMaxSharedBytes = 47 * 1024;  // a block gets 48 KiB without asking; the sums of warps need some

// Sums of d_weight: 32 columns per block, each by 32 threads that take every 32nd row of sums.
constexpr int kFinalColumns = 32;
constexpr int kFinalSlices = 32;

int threads_of_row(std::int64_t width, Type type, int packs_per_thread, int most) {
  const std::int64_t n_threads = ceil_div(ceil_div(width, pack_elems(type)), packs_per_thread);
  return static_cast<int>(std::min<std::int64_t>(most, round_up(n_threads, kWarp)));
}

// Forward.

/// pack = round(pack + addend)
template <class T>
__device__ __forceinline__ void add_into(Pack<T>& pack, const Pack<T>& addend) {
  constexpr int kElems = Pack<T>::kElems;
  float a[kElems];
  float b[kElems];
  unpack(pack, a);
  unpack(addend, b);
#pragma unroll
  for (int i = 0; i < kElems; ++i) a[i] += b[i];
  round_into(pack, a);
}

template <class T>
__device__ __forceinline__ float add_squares(const Pack<T>& pack, float total) {
  float values[Pack<T>::kElems];
  unpack(pack, values);
#pragma unroll
  for (int i = 0; i < Pack<T>::kElems; ++i) total = fmaf(values[i], values[i], total);
  return total;
}

/// pack = round(pack * rstd * weight)
template <class T>
__device__ __forceinline__ void scale(Pack<T>& pack, const Pack<T>& weight, float rstd) {
  constexpr int kElems = Pack<T>::kElems;
  float values[kElems];
  float factors[kElems];
  unpack(pack, values);
  unpack(weight, factors);
#pragma unroll
  for (int i = 0; i < kElems; ++i) values[i] = values[i] * rstd * factors[i];
  round_into(pack, values);
}

/// A row of the forward pass, and how its threads share it.
template <class T, bool kVector>
struct ForwardRow {
  static constexpr int kElems = Pack<T>::kElems;

  const T* x;
  const T* addend;  // null where nothing is added
  T* sum;
  const T* weight;
  T* y;
  int width;
  int begin;  // of the thread's first pack
  int step;   // to its next one

  __device__ __forceinline__ int count_at(int c) const { return count_of<kElems, kVector>(width - c); }

  /// Squares of what does not stay in registers.
  __device__ __forceinline__ float squares_of_rest(int c, float squares) const {
    for (; c < width; c += step) {
      Pack<T> pack;
      load<kVector>(pack, x + c, count_at(c));
      if (addend != nullptr) {
        Pack<T> other;
        load<kVector>(other, addend + c, count_at(c));
        add_into(pack, other);
        store<kVector>(sum + c, count_at(c), pack);
      }
      squares = add_squares(pack, squares);
    }
    return squares;
  }

  __device__ __forceinline__ void scale_rest(int c, float rstd) const {
    for (; c < width; c += step) {
      Pack<T> pack;
      Pack<T> factor;
      load<kVector>(pack, (addend != nullptr ? sum : x) + c, count_at(c));
      load<kVector>(factor, weight + c, count_at(c));
      scale(pack, factor, rstd);
      store<kVector>(y + c, count_at(c), pack);
    }
  }
};

/// One row per block.
template <class T, bool kVector>
__global__ void __launch_bounds__(kForwardThreads) rmsnorm_forward_kernel(const RmsNormForwardArgs args) {
  constexpr int kElems = Pack<T>::kElems;
  __shared__ float warp_sums[kForwardThreads / kWarp];
  const std::int64_t first = std::int64_t{blockIdx.x} * args.width;
  const bool has_addend = args.addend != nullptr;
  const ForwardRow<T, kVector> row = {static_cast<const T*>(args.x) + first,
                                      has_addend ? static_cast<const T*>(args.addend) + first : nullptr,
                                      has_addend ? static_cast<T*>(args.sum) + first : nullptr,
                                      static_cast<const T*>(args.weight),
                                      static_cast<T*>(args.y) + first,
                                      static_cast<int>(args.width),
                                      static_cast<int>(threadIdx.x) * kElems,
                                      static_cast<int>(blockDim.x) * kElems};
  const int rest = row.begin + kForwardPacks * row.step;
  Pack<T> kept[kForwardPacks];
  Pack<T> others[kForwardPacks];  // addends, then weights
  float squares = 0;
#pragma unroll
  for (int u = 0; u < kForwardPacks; ++u) {
    const int c = row.begin + u * row.step;
    load<kVector>(kept[u], row.x + c, row.count_at(c));
    if (has_addend) load<kVector>(others[u], row.addend + c, row.count_at(c));
  }
  if (has_addend) {
#pragma unroll
    for (int u = 0; u < kForwardPacks; ++u) {
      const int c = row.begin + u * row.step;
      add_into(kept[u], others[u]);
      store<kVector>(row.sum + c, row.count_at(c), kept[u]);
    }
  }
#pragma unroll
  for (int u = 0; u < kForwardPacks; ++u) {
    const int c = row.begin + u * row.step;
    load<kVector>(others[u], row.weight + c, row.count_at(c));
    squares = add_squares(kept[u], squares);
  }
  squares = row.squares_of_rest(rest, squares);

  const float mean = block_sum(squares, warp_sums) / static_cast<float>(row.width);
  const float rstd = 1.0F / sqrtf(mean + args.eps);
  if (threadIdx.x == 0) args.rstd[blockIdx.x] = rstd;
#pragma unroll
  for (int u = 0; u < kForwardPacks; ++u) {
    const int c = row.begin + u * row.step;
    scale(kept[u], others[u], rstd);
    store<kVector>(row.y + c, row.count_at(c), kept[u]);
  }
  row.scale_rest(rest, rstd);
}

// Backward.

/// How the rows of a backward pass are cut; a function of the shape alone.
struct BackwardCut {
  std::int64_t n_row_blocks;
  int rows_per_block;  // a multiple of n_groups
  int sums_width;      // of a row of sums: whole packs
  int group_threads;   // that share a row
  int n_groups;        // of a block
  bool shared_sums;    // else the only group of the block adds in its row of the scratch
};

/// Rows of sums are as wide for f32 as for bf16, so that the scratch does not depend on the type.
constexpr std::int64_t sums_width_of(std::int64_t width) { return round_up(width, pack_elems(Type::kBf16)); }

BackwardCut backward_cut(std::int64_t n_rows, std::int64_t width, Type type) {
  BackwardCut cut = {};
  cut.group_threads = threads_of_row(width, type, kBackwardPacks, kBackwardThreads);
  cut.n_groups = std::max(1, kBackwardBlock / cut.group_threads);
  cut.rows_per_block = static_cast<int>(round_up(ceil_div(n_rows, kMaxRowBlocks), cut.n_groups));
  cut.n_row_blocks = ceil_div(n_rows, cut.rows_per_block);
  cut.sums_width = static_cast<int>(sums_width_of(width));
  cut.shared_sums = cut.n_groups * cut.sums_width * 4 <= kMaxSharedBytes;
  return cut;
}

/// What is read of one pack of a row.
template <class T, bool kResidual>
struct BackwardPacks {
  static constexpr int kElems = Pack<T>::kElems;

  Pack<T> d_y;
  Pack<T> x;
  Pack<T> d_residual;  // untouched without kResidual

  /// `at` is the index of the pack's first element.
  template <bool kVector>
  __device__ __forceinline__ void read(const RmsNormBackwardArgs& args, std::int64_t at, int count) {
    load<kVector>(d_y, static_cast<const T*>(args.d_y) + at, count);
    load<kVector>(x, static_cast<const T*>(args.x) + at, count);
    if constexpr (kResidual) load<kVector>(d_residual, static_cast<const T*>(args.d_residual) + at, count);
  }

  /// total + sum of d_y * weight * x
  __device__ __forceinline__ float project(const Pack<T>& weight, float total) const {
    float upstream[kElems];
    float factor[kElems];
    float value[kElems];
    unpack(d_y, upstream);
    unpack(weight, factor);
    unpack(x, value);
#pragma unroll
    for (int i = 0; i < kElems; ++i) total = fmaf(upstream[i] * factor[i], value[i], total);
    return total;
  }

  /// Adds the pack's part of d_weight to `sums` and returns its d_x.
  __device__ __forceinline__ Pack<T> gradient(const Pack<T>& weight, float rstd, float mean,
                                              float (&sums)[kElems]) const {
    float upstream[kElems];
    float factor[kElems];
    float value[kElems];
    float out[kElems] = {};
    unpack(d_y, upstream);
    unpack(weight, factor);
    unpack(x, value);
    if constexpr (kResidual) unpack(d_residual, out);
#pragma unroll
    for (int i = 0; i < kElems; ++i) {
      const float normed = value[i] * rstd;
      out[i] += rstd * (upstream[i] * factor[i] - normed * mean);
      sums[i] += upstream[i] * normed;
    }
    Pack<T> result;
    round_into(result, out);
    return result;
  }
};

template <int kElems>
__device__ __forceinline__ void load_sums(float (&values)[kElems], const float* sums) {
#pragma unroll
  for (int q = 0; q < kElems / 4; ++q) {
    const float4 part = reinterpret_cast<const float4*>(sums)[q];
    values[4 * q] = part.x;
    values[4 * q + 1] = part.y;
    values[4 * q + 2] = part.z;
    values[4 * q + 3] = part.w;
  }
}

template <int kElems>
__device__ __forceinline__ void store_sums(float* sums, const float (&values)[kElems]) {
#pragma unroll
  for (int q = 0; q < kElems / 4; ++q) {
    reinterpret_cast<float4*>(sums)[q] =
        make_float4(values[4 * q], values[4 * q + 1], values[4 * q + 2], values[4 * q + 3]);
  }
}

/// What a thread keeps of one row.
template <class T, bool kResidual>
struct KeptRow {
  BackwardPacks<T, kResidual> packs[kBackwardPacks];
  float rstd;
};

/// A thread of the backward pass: its columns, their weights, and their sums of d_weight so far.
template <class T, bool kVector, bool kResidual>
struct BackwardThread {
  static constexpr int kElems = Pack<T>::kElems;
  using Row = KeptRow<T, kResidual>;

  const RmsNormBackwardArgs& args;
  int width;
  int begin;    // column of its first pack
  int step;     // to its next one
  float* sums;  // of a whole row; the thread's kept columns get there in the end
  Pack<T> weights[kBackwardPacks] = {};
  float kept_sums[kBackwardPacks][kElems] = {};

  __device__ __forceinline__ int column(int u) const { return begin + u * step; }
  __device__ __forceinline__ int count_at(int c) const { return count_of<kElems, kVector>(width - c); }
  __device__ __forceinline__ void load_weight(Pack<T>& weight, int c) const {
    load<kVector>(weight, static_cast<const T*>(args.weight) + c, count_at(c));
  }

  __device__ __forceinline__ void start() {
#pragma unroll
    for (int u = 0; u < kBackwardPacks; ++u) load_weight(weights[u], column(u));
    for (int c = column(kBackwardPacks); c < width; c += step) store_sums<kElems>(sums + c, {});
  }

  /// Zeros from row `end` on.
  __device__ __forceinline__ void read(Row& kept, std::int64_t row, std::int64_t end) const {
    const bool is_row = row < end;
#pragma unroll
    for (int u = 0; u < kBackwardPacks; ++u) {
      const int c = column(u);
      kept.packs[u].template read<kVector>(args, row * width + c, is_row ? count_at(c) : 0);
    }
    kept.rstd = is_row ? args.rstd[row] : 0.0F;
  }

  /// The thread's part of the row's sum of d_y * weight * x.
  __device__ __forceinline__ float project(const Row& kept, std::int64_t row, bool is_row) const {
    float total = 0;
#pragma unroll
    for (int u = 0; u < kBackwardPacks; ++u) total = kept.packs[u].project(weights[u], total);
#pragma unroll 1
    for (int c = is_row ? column(kBackwardPacks) : width; c < width; c += step) {
      BackwardPacks<T, kResidual> packs;
      Pack<T> weight;
      packs.template read<kVector>(args, row * width + c, count_at(c));
      load_weight(weight, c);
      total = packs.project(weight, total);
    }
    return total;
  }

  /// Writes d_x and adds to the sums. `mean` is that of d_y * weight * normed x.
  __device__ __forceinline__ void finish(const Row& kept, std::int64_t row, float mean) {
    T* const d_x = static_cast<T*>(args.d_x) + row * width;
#pragma unroll
    for (int u = 0; u < kBackwardPacks; ++u) {
      const int c = column(u);
      if (c >= width) continue;
      store<kVector>(d_x + c, count_at(c), kept.packs[u].gradient(weights[u], kept.rstd, mean, kept_sums[u]));
    }
#pragma unroll 1
    for (int c = column(kBackwardPacks); c < width; c += step) {
      BackwardPacks<T, kResidual> packs;
      Pack<T> weight;
      float part[kElems];
      packs.template read<kVector>(args, row * width + c, count_at(c));
      load_weight(weight, c);
      load_sums(part, sums + c);
      store<kVector>(d_x + c, count_at(c), packs.gradient(weight, kept.rstd, mean, part));
      store_sums(sums + c, part);
    }
  }

  __device__ __forceinline__ void store_kept_sums() const {
#pragma unroll
    for (int u = 0; u < kBackwardPacks; ++u) {
      if (column(u) < width) store_sums(sums + column(u), kept_sums[u]);
    }
  }
};

/// One block of rows per block; `partials`: (n_row_blocks, sums_width).
template <class T, bool kVector, bool kResidual>
__global__ void __launch_bounds__(kBackwardThreads)
    rmsnorm_backward_kernel(const RmsNormBackwardArgs args, const BackwardCut cut, float* partials) {
  constexpr int kElems = Pack<T>::kElems;
  extern __shared__ float4 shared_sums[];
  __shared__ float warp_sums[2][kBackwardThreads / kWarp];
  const int width = static_cast<int>(args.width);
  const int group = static_cast<int>(threadIdx.x) / cut.group_threads;
  const int lane = static_cast<int>(threadIdx.x) % cut.group_threads;
  const int n_warps = cut.group_threads / kWarp;
  float* const block_partials = partials + std::int64_t{blockIdx.x} * cut.sums_width;
  float* const all_sums = cut.shared_sums ? reinterpret_cast<float*>(shared_sums) : block_partials;
  BackwardThread<T, kVector, kResidual> thread = {args, width, lane * kElems, cut.group_threads * kElems,
                                                  all_sums + group * cut.sums_width};
  const std::int64_t first = std::int64_t{blockIdx.x} * cut.rows_per_block;
  const std::int64_t end = min(first + cut.rows_per_block, args.n_rows);

  KeptRow<T, kResidual> kept;
  thread.start();
  thread.read(kept, first + group, end);
  for (int i = 0; i < cut.rows_per_block / cut.n_groups; ++i) {
    const std::int64_t row = first + i * cut.n_groups + group;
    KeptRow<T, kResidual> next;
    thread.read(next, row + cut.n_groups, end);
    // Two rows of sums in turn: a fast warp may write the next ones while a slow one still reads.
    const float total = group_sum(thread.project(kept, row, row < end), warp_sums[i % 2], group * n_warps, n_warps);
    if (row < end) thread.finish(kept, row, total * kept.rstd / static_cast<float>(width));
    kept = next;
  }
  thread.store_kept_sums();
  if (!cut.shared_sums) return;
  __syncthreads();
  for (int c = static_cast<int>(threadIdx.x); c < width; c += static_cast<int>(blockDim.x)) {
    float total = all_sums[c];
    for (int g = 1; g < cut.n_groups; ++g) total += all_sums[g * cut.sums_width + c];
    block_partials[c] = total;
  }
}

/// d_weight of kFinalColumns columns: slices of the rows of sums in order, the slices in order, then the old value.
template <class T>
__global__ void __launch_bounds__(kFinalColumns* kFinalSlices)
    rmsnorm_d_weight_kernel(const float* partials, const BackwardCut cut, std::int64_t width, bool accumulate,
                            T* d_weight) {
  __shared__ float slices[kFinalSlices][kFinalColumns];
  const int lane = static_cast<int>(threadIdx.x) % kFinalColumns;
  const int slice = static_cast<int>(threadIdx.x) / kFinalColumns;
  const std::int64_t column = std::int64_t{blockIdx.x} * kFinalColumns + lane;
  float total = 0;
  if (column < width) {
#pragma unroll 8
    for (std::int64_t r = slice; r < cut.n_row_blocks; r += kFinalSlices) {
      total += partials[r * cut.sums_width + column];
    }
  }
  slices[slice][lane] = total;
  __syncthreads();
  if (slice != 0 || column >= width) return;
  for (int s = 1; s < kFinalSlices; ++s) total += slices[s][lane];
  if (accumulate) total = to_float(d_weight[column]) + total;
  d_weight[column] = round_to<T>(total);
}

}  // namespace

// Launchers.

cudaError_t launch_rmsnorm_forward(const RmsNormForwardArgs& args, cudaStream_t stream) {
  const bool is_vector = RowCheck{args.n_rows, args.width, args.type}.whole_packs() && is_aligned(args.x) &&
                         is_aligned(args.addend) && is_aligned(args.sum) && is_aligned(args.y) &&
                         is_aligned(args.weight);
  const LaunchShape shape = {args.n_rows, threads_of_row(args.width, args.type, kForwardPacks, kForwardThreads)};
  return with_type(args.type, is_vector, [&]<class T, bool kVector>() {
    return launch(rmsnorm_forward_kernel<T, kVector>, shape, stream, args);
  });
}

std::size_t rmsnorm_backward_scratch_bytes(std::int64_t n_rows, std::int64_t width) {
  return static_cast<std::size_t>(std::min(n_rows, kMaxRowBlocks) * sums_width_of(width)) * sizeof(float);
}

cudaError_t launch_rmsnorm_backward(const RmsNormBackwardArgs& args, cudaStream_t stream) {
  const bool is_vector = RowCheck{args.n_rows, args.width, args.type}.whole_packs() && is_aligned(args.d_y) &&
                         is_aligned(args.x) && is_aligned(args.d_residual) && is_aligned(args.d_x) &&
                         is_aligned(args.weight);
  const BackwardCut cut = backward_cut(args.n_rows, args.width, args.type);
  auto* const partials = static_cast<float*>(args.scratch);
  const LaunchShape shape = {cut.n_row_blocks, cut.group_threads * cut.n_groups,
                             cut.shared_sums ? static_cast<std::size_t>(cut.n_groups * cut.sums_width) * 4 : 0};
  const LaunchShape final_shape = {ceil_div(args.width, kFinalColumns), kFinalColumns * kFinalSlices};
  const cudaError_t error = with_type(args.type, is_vector, [&]<class T, bool kVector>() {
    const auto kernel =
        args.d_residual ? rmsnorm_backward_kernel<T, kVector, true> : rmsnorm_backward_kernel<T, kVector, false>;
    return launch(kernel, shape, stream, args, cut, partials);
  });
  if (error != cudaSuccess) return error;
  return with_type(args.d_weight_type, false, [&]<class T, bool>() {
    return launch(rmsnorm_d_weight_kernel<T>, final_shape, stream, static_cast<const float*>(partials), cut, args.width,
                  args.accumulate, static_cast<T*>(args.d_weight));
  });
}

}  // namespace ferry::kernels
