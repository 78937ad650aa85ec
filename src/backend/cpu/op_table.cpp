// SPDX-License-Identifier: Apache-2.0
// Cuts each op into pieces by its shape alone and shares them out; the arithmetic is in kernels/.
#include "backend/cpu/op_table.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <new>
#include <span>

#include "backend/cpu/kernels/kernel_table.h"
#include "core/int_math.h"
#include "optim/adamw.h"
#include "optim/embedding_rows.h"

namespace ferry::cpu {
namespace {

// A piece of 16384 elements takes 5-20 us, several times the cost of handing it to a thread; below two pieces an op
// stays on the calling thread.
constexpr std::int64_t kPieceElems = 16384;
constexpr std::int64_t kSerialElems = 2 * kPieceElems;
// About 20 us of an AVX-512 core.
constexpr std::int64_t kSerialFlop = std::int64_t{1} << 21;
// Enough pieces for a many-core machine, few enough that their partial sums are cheap to add.
constexpr std::int64_t kMaxPartials = 64;
constexpr std::int64_t kSquaresPiece = 65536;

/// Memory of one thread for the pieces it runs: grows to the largest piece seen, then stays.
class Workspace {
 public:
  Workspace() = default;
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  ~Workspace() { std::free(data_); }

  float* reserve(std::int64_t n) {
    if (n <= n_elems_) return data_;
    std::free(data_);
    n_elems_ = 0;
    data_ = static_cast<float*>(std::aligned_alloc(64, round_up(n, 16) * sizeof(float)));
    if (data_ == nullptr) throw std::bad_alloc();
    n_elems_ = n;
    return data_;
  }

 private:
  float* data_ = nullptr;
  std::int64_t n_elems_ = 0;
};

float* thread_workspace(std::int64_t n_elems) {
  thread_local Workspace workspace;
  return workspace.reserve(n_elems);
}

struct Context {
  const KernelTable& kernels;
  SimdLevel level;
  Scratch scratch;
  ThreadPool& pool;

  float* scratch_floats() const { return static_cast<float*>(scratch.data); }
};

/// fn(i) for i in [0, count). std::ref keeps std::function from allocating a copy of the closure.
template <class Fn>
void for_each_piece(const Context& context, std::int64_t count, bool serial, Fn&& fn) {
  if (serial) {
    for (std::int64_t i = 0; i < count; ++i) fn(i);
  } else {
    context.pool.parallel_for(count, std::ref(fn));
  }
}

/// fn(range) over [0, n) in ranges of `step`.
template <class Fn>
void for_each_range(const Context& context, std::int64_t n, std::int64_t step, bool serial, Fn&& fn) {
  for_each_piece(context, ceil_div(n, step), serial, [&](std::int64_t i) {
    fn(Range{i * step, std::min(n, (i + 1) * step)});
  });
}

/// fn(range) over rows of `width` elements.
template <class Fn>
void for_each_row_range(const Context& context, std::int64_t n_rows, std::int64_t width, Fn&& fn) {
  for_each_range(context, n_rows, std::max<std::int64_t>(1, kPieceElems / width), n_rows * width < kSerialElems, fn);
}

template <class T>
std::span<T> elements(const TensorView& x) {
  return {x.as<std::remove_const_t<T>>(), static_cast<std::size_t>(x.elems())};
}

// --- matrix product ---

struct MatmulCut {
  std::int64_t tile_rows;
  std::int64_t tile_columns;
};

/// Tiles of equal size, as large as allowed, smaller while there are too few to share out. Rows are cut first: down to
/// 64 x 128 a tile keeps 90 % of a large tile's speed, narrower ones lose more (measured with AVX2, depth 2048).
MatmulCut matmul_cut(std::int64_t rows, std::int64_t columns) {
  constexpr std::int64_t kWantedTiles = 8;
  constexpr std::int64_t kMinRows = 64;
  constexpr std::int64_t kMinColumns = 128;
  std::int64_t max_rows = kMaxTileRows;
  std::int64_t max_columns = kMaxTileColumns;
  while (ceil_div(rows, max_rows) * ceil_div(columns, max_columns) < kWantedTiles) {
    if (max_rows > kMinRows) {
      max_rows /= 2;
    } else if (max_columns > kMinColumns) {
      max_columns = std::max(kMinColumns, max_columns / 2);
    } else {
      break;
    }
  }
  const auto even = [](std::int64_t n, std::int64_t limit, std::int64_t unit) {
    return std::min(limit, round_up(ceil_div(n, ceil_div(n, limit)), unit));
  };
  return {even(rows, max_rows, 4), even(columns, max_columns, 48)};
}

void run_op(const Context& context, const Matmul& op) {
  const std::int64_t rows = op.d.shape[0];
  const std::int64_t columns = op.d.shape[1];
  const std::int64_t depth = op.transpose_a ? op.a.shape[0] : op.a.shape[1];
  const MatmulCut cut = matmul_cut(rows, columns);
  const std::int64_t n_column_tiles = ceil_div(columns, cut.tile_columns);
  const std::int64_t n_tiles = ceil_div(rows, cut.tile_rows) * n_column_tiles;
  for_each_piece(context, n_tiles, 2 * rows * columns * depth < kSerialFlop, [&](std::int64_t i) {
    MatmulTile tile;
    tile.row = i / n_column_tiles * cut.tile_rows;
    tile.n_rows = std::min(cut.tile_rows, rows - tile.row);
    tile.column = i % n_column_tiles * cut.tile_columns;
    tile.n_columns = std::min(cut.tile_columns, columns - tile.column);
    context.kernels.matmul(op, tile, thread_workspace(matmul_workspace_elems()));
  });
}

// --- attention ---

void run_op(const Context& context, const AttentionForward& op) {
  const std::int64_t length = op.q.shape[1];
  const std::int64_t n_heads = op.q.shape[2];
  const std::int64_t n_rows = op.q.shape[0] * n_heads;
  const std::int64_t n_tiles = ceil_div(length, kQueryTile);
  const std::int64_t work = n_rows * length * op.k.shape[1] * op.q.shape[3];
  for_each_piece(context, n_rows * n_tiles, 4 * work < kSerialFlop, [&](std::int64_t i) {
    const std::int64_t begin = (n_tiles - 1 - i / n_rows) * kQueryTile;  // the last rows see most keys: they go first
    const QueryTile tile = {i % n_rows / n_heads, i % n_heads, begin, std::min(kQueryTile, length - begin)};
    context.kernels.attention_forward(op, tile, thread_workspace(attention_workspace_elems(op.q.shape[3])));
  });
}

/// (B, G, 2, S, D) f32: the sums of d_k and d_v.
std::int64_t scratch_elems(const AttentionBackward& op) { return 2 * op.k.elems(); }

void run_op(const Context& context, const AttentionBackward& op) {
  const std::int64_t n_kv_heads = op.k.shape[2];
  const std::int64_t n_sums = op.k.shape[1] * op.k.shape[3];
  const std::int64_t work = op.q.elems() * op.k.shape[1];
  for_each_piece(context, op.k.shape[0] * n_kv_heads, 10 * work < kSerialFlop, [&](std::int64_t i) {
    float* const sums = context.scratch_floats() + 2 * n_sums * i;
    context.kernels.attention_backward(op, i / n_kv_heads, i % n_kv_heads, sums, sums + n_sums,
                                       thread_workspace(attention_workspace_elems(op.q.shape[3])));
  });
}

// --- RMSNorm ---

void run_op(const Context& context, const RmsNormForward& op) {
  for_each_row_range(context, op.x.shape[0], op.x.shape[1],
                     [&](Range rows) { context.kernels.rmsnorm_forward(op, rows); });
}

/// Rows whose d_weight is summed into one partial row.
std::int64_t partial_rows(const RmsNormBackward& op) {
  const std::int64_t width =
      std::max<std::int64_t>(1, op.x.shape[1]);  // scratch is asked for before shapes are checked
  return std::max(ceil_div(op.x.shape[0], kMaxPartials), ceil_div(kPieceElems / 2, width));
}
/// (partials, C) f32.
std::int64_t scratch_elems(const RmsNormBackward& op) {
  return ceil_div(op.x.shape[0], partial_rows(op)) * op.x.shape[1];
}

void run_op(const Context& context, const RmsNormBackward& op) {
  const std::int64_t width = op.x.shape[1];
  const std::int64_t step = partial_rows(op);
  const bool serial = op.x.elems() < kSerialElems;
  float* const partials = context.scratch_floats();
  for_each_range(context, op.x.shape[0], step, serial,
                 [&](Range rows) { context.kernels.rmsnorm_backward(op, rows, partials + rows.begin / step * width); });
  const std::int64_t n_partials = ceil_div(op.x.shape[0], step);
  for_each_range(context, width, 1024, n_partials * width < kSerialElems,
                 [&](Range columns) { context.kernels.rmsnorm_d_weight(op, partials, n_partials, columns); });
}

// --- the rest ---

void run_op(const Context& context, const EmbeddingForward& op) {
  gather_rows(op.table.dtype, op.table.data, op.table.shape[1], elements<const std::int32_t>(op.ids), op.y.data,
              context.pool);
}

void run_op(const Context& context, const EmbeddingBackward& op) {
  scatter_add_rows(op.d_table.dtype, elements<const std::int32_t>(op.ids), elements<const std::int32_t>(op.order),
                   op.d_y.data, op.d_table.shape[1], 0, op.d_table.shape[0], op.d_table.data, context.pool);
}

void run_op(const Context& context, const Rope& op) {
  for_each_row_range(context, op.x.shape[0] * op.x.shape[1], op.x.shape[2] * op.x.shape[3],
                     [&](Range rows) { context.kernels.rope(op, rows); });
}

void run_op(const Context& context, const SwigluForward& op) {
  for_each_row_range(context, op.y.shape[0], op.y.shape[1],
                     [&](Range rows) { context.kernels.swiglu_forward(op, rows); });
}

void run_op(const Context& context, const SwigluBackward& op) {
  for_each_row_range(context, op.d_y.shape[0], op.d_y.shape[1],
                     [&](Range rows) { context.kernels.swiglu_backward(op, rows); });
}

void run_op(const Context& context, const CrossEntropyChunk& op) {
  for_each_row_range(context, op.logits.shape[0], op.logits.shape[1],
                     [&](Range rows) { context.kernels.cross_entropy_chunk(op, rows); });
}

void run_op(const Context& context, const CrossEntropyLoss& op) { context.kernels.cross_entropy_loss(op); }

void run_op(const Context& context, const CrossEntropyBackward& op) {
  for_each_row_range(context, op.logits.shape[0], op.logits.shape[1],
                     [&](Range rows) { context.kernels.cross_entropy_backward(op, rows); });
}

void run_op(const Context& context, const Cast& op) {
  for_each_row_range(context, op.x.elems(), 1, [&](Range elems) {
    if (op.x.dtype != op.y.dtype) return context.kernels.cast(op, elems);
    const std::size_t size = size_of(op.x.dtype);
    std::memcpy(static_cast<char*>(op.y.data) + elems.begin * size,
                static_cast<const char*>(op.x.data) + elems.begin * size, (elems.end - elems.begin) * size);
  });
}

void run_op(const Context& context, const Fill& op) {
  for_each_row_range(context, op.x.elems(), 1, [&](Range elems) {
    const std::size_t size = size_of(op.x.dtype);
    std::memset(static_cast<char*>(op.x.data) + elems.begin * size, op.byte, (elems.end - elems.begin) * size);
  });
}

std::int64_t scratch_elems(const SumOfSquares& op) { return ceil_div(op.x.elems(), kSquaresPiece); }

void run_op(const Context& context, const SumOfSquares& op) {
  float* const partials = context.scratch_floats();
  for_each_range(context, op.x.elems(), kSquaresPiece, op.x.elems() < kSerialElems, [&](Range elems) {
    partials[elems.begin / kSquaresPiece] = context.kernels.sum_of_squares(op, elems);
  });
  *op.y.as<float>() = context.kernels.sum(partials, scratch_elems(op));
}

void run_op(const Context& context, const Adamw& op) {
  AdamwRange range;
  range.dtype = op.weight.dtype;
  range.state = op.m.dtype == DType::kF32 ? OptimizerState::kF32
                : op.weight_low           ? OptimizerState::kMixed
                                          : OptimizerState::kBf16;
  range.weight = op.weight.data;
  range.weight_low = static_cast<std::int16_t*>(op.weight_low.data);
  range.m = op.m.data;
  range.v = op.v.data;
  range.gradient = op.gradient.data;
  range.n = op.weight.elems();
  range.parameter = op.parameter;
  range.element = op.element;
  adamw_update(range, op.scalars, context.level, context.pool);
}

// Ops without an overload of their own need no scratch.
template <class AnyOp>
std::int64_t scratch_elems(const AnyOp&) {
  return 0;
}

template <SimdLevel kLevel>
void run(const Op& op, Scratch scratch, ThreadPool& pool) {
  const Context context = {kernels(kLevel), kLevel, scratch, pool};
  std::visit([&](const auto& each) { run_op(context, each); }, op);
}

std::size_t scratch_bytes(const Op& op) {
  return std::visit([](const auto& each) { return static_cast<std::size_t>(scratch_elems(each)) * sizeof(float); }, op);
}

constexpr OpTable kTables[] = {{SimdLevel::kScalar, run<SimdLevel::kScalar>, scratch_bytes},
                               {SimdLevel::kAvx2, run<SimdLevel::kAvx2>, scratch_bytes},
                               {SimdLevel::kAvx512, run<SimdLevel::kAvx512>, scratch_bytes}};

}  // namespace

const KernelTable& kernels(SimdLevel level) {
  switch (level) {
    case SimdLevel::kScalar: return scalar::kKernels;
    case SimdLevel::kAvx2: return avx2::kKernels;
    case SimdLevel::kAvx512: break;
  }
  return avx512::kKernels;
}

const OpTable& op_table(SimdLevel level) { return kTables[static_cast<int>(level)]; }

}  // namespace ferry::cpu
