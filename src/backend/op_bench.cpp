// SPDX-License-Identifier: Apache-2.0
// Ops and their yardstick take turns, so that both meet the same noise; the fastest repetition of each counts.
#include "backend/op_bench.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <memory>

#include "backend/cpu/plain_eigen.h"

namespace ferry {
namespace {

using Clock = std::chrono::steady_clock;

double seconds(const std::function<void()>& fn) {
  const auto begin = Clock::now();
  fn();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

struct Fastest {
  double ours = 1e30;
  double yardstick = 1e30;
};

/// Seconds of one call each; `yardstick` may be empty.
Fastest take_turns(const std::function<void()>& ours, const std::function<void()>& yardstick, double limit) {
  Fastest fastest;
  ours();
  if (yardstick) yardstick();
  const auto end = Clock::now() + std::chrono::duration<double>(limit);
  do {
    fastest.ours = std::min(fastest.ours, seconds(ours));
    if (yardstick) fastest.yardstick = std::min(fastest.yardstick, seconds(yardstick));
  } while (Clock::now() < end);
  return fastest;
}

/// Bytes of the elements that an op reads and writes.
template <class Args>
double bytes_moved(const Args& args) {
  double total = 0;
  args.visit([&](Access access, const char*, const TensorView& view) {
    if (!view) return;
    const auto size = static_cast<double>(view.elems()) * static_cast<double>(size_of(view.dtype));
    total += access == Access::kReadWrite ? 2 * size : size;
  });
  return total;
}

/// Shapes of one model at one number of rows.
struct BenchModel {
  std::int64_t batch;
  std::int64_t length;
  std::int64_t width;       // C
  std::int64_t ffn_width;   // F
  std::int64_t n_heads;     // H
  std::int64_t n_kv_heads;  // G
  std::int64_t head_dim;    // D
  std::int64_t vocabulary;  // rows of one chunk

  std::int64_t rows() const { return batch * length; }
};

constexpr BenchModel kTiny = {16, 128, 128, 352, 4, 2, 32, 256};
constexpr BenchModel kSlice1B = {1, 512, 2048, 8192, 32, 8, 64, 8192};

class OpBench {
 public:
  OpBench(Backend& backend, const OpBenchOptions& options, const std::function<void(const OpBenchRow&)>& report)
      : backend_(backend),
        options_(options),
        report_(report),
        stream_(backend.create_stream("bench")),
        pool_(options.threads) {}

  void run(const BenchModel& model, DType dtype) {
    dtype_ = dtype;
    linear(model.rows(), model.width, (model.n_heads + 2 * model.n_kv_heads) * model.head_dim);
    linear(model.rows(), model.width, model.ffn_width);
    linear(model.rows(), model.ffn_width, model.width);
    attention(model);
    pointwise(model);
    cross_entropy(model);
  }

  std::vector<OpBenchRow> rows;

 private:
  /// Device memory of `shape`, filled with small values that repeat every 1021 elements.
  TensorView tensor(DType dtype, std::initializer_list<std::int64_t> shape) {
    TensorView view(nullptr, dtype, shape);
    const Buffer host = backend_.allocate_host(view.size_bytes(), "bench values");
    for (std::int64_t i = 0; i < view.elems(); ++i) {
      const float value = static_cast<float>(i % 1021 - 510) / 1021.0F;
      if (dtype == DType::kF32) static_cast<float*>(host.data())[i] = value;
      if (dtype == DType::kBf16) static_cast<Bf16*>(host.data())[i] = to_bf16(value);
      if (dtype == DType::kI32) static_cast<std::int32_t*>(host.data())[i] = static_cast<std::int32_t>(i % 256);
    }
    buffers_.push_back(backend_.allocate_device(view.size_bytes(), "bench tensors"));
    view.data = buffers_.back().data();
    backend_.copy(stream_.get(), view.data, host.data(), view.size_bytes(), CopyDirection::kHostToDevice);
    backend_.sync(stream_.get());
    return view;
  }

  TensorView tensor(std::initializer_list<std::int64_t> shape) { return tensor(dtype_, shape); }

  std::function<void()> runner(const Op& op) {
    const std::size_t size = backend_.scratch_bytes(op);
    Scratch scratch;
    if (size > 0) {
      buffers_.push_back(backend_.allocate_device(size, "bench scratch"));
      scratch = {buffers_.back().data(), size};
    }
    return [this, op, scratch] {
      backend_.enqueue(stream_.get(), op, scratch);
      backend_.sync(stream_.get());
    };
  }

  void add(const char* op, const std::string& shape, const char* unit, double work, const Fastest& fastest) {
    OpBenchRow row = {op, shape, dtype_, fastest.ours * 1e3, work / fastest.ours / 1e9, unit, 0};
    if (fastest.yardstick < 1e30) row.yardstick = work / fastest.yardstick / 1e9;
    rows.push_back(row);
    report_(row);
  }

  /// A product on the backend against a plain f32 one in host memory.
  void product(const char* name, const Matmul& op) {
    const std::int64_t depth = op.transpose_a ? op.a.shape[0] : op.a.shape[1];
    std::vector<std::vector<float>> storage;
    const auto host = [&](const TensorView& view) {
      storage.emplace_back(view.elems(), 0.5F);
      return TensorView(storage.back().data(), DType::kF32, {view.shape[0], view.shape[1]});
    };
    Matmul plain = op;
    plain.a = host(op.a);
    plain.b = host(op.b);
    plain.d = host(op.d);
    const auto yardstick = [&] { cpu::plain_eigen_product(options_.level, plain, pool_); };
    const Fastest fastest = take_turns(runner(op), yardstick, 2 * options_.seconds_per_op);
    const double flop = 2.0 * static_cast<double>(op.d.elems()) * static_cast<double>(depth);
    add(name, fmt::format("{} x {} x {}", op.d.shape[0], op.d.shape[1], depth), "GFLOP/s", flop, fastest);
  }

  /// The three products of a layer with weight (outputs, inputs).
  void linear(std::int64_t n, std::int64_t inputs, std::int64_t outputs) {
    const TensorView x = tensor({n, inputs});
    const TensorView y = tensor({n, outputs});
    const TensorView weight = tensor({outputs, inputs});
    Matmul op;
    op.a = x;
    op.b = weight;
    op.d = y;
    op.transpose_b = true;
    product("y = x W^T", op);
    op = {};
    op.a = y;
    op.b = weight;
    op.d = x;
    product("d_x = d_y W", op);
    op = {};
    op.a = y;
    op.b = x;
    op.d = weight;
    op.transpose_a = true;
    product("d_W = d_y^T x", op);
    buffers_.clear();
  }

  void attention(const BenchModel& m) {
    AttentionForward forward;
    forward.q = tensor({m.batch, m.length, m.n_heads, m.head_dim});
    forward.k = tensor({m.batch, m.length, m.n_kv_heads, m.head_dim});
    forward.v = tensor({m.batch, m.length, m.n_kv_heads, m.head_dim});
    forward.o = tensor({m.batch, m.length, m.n_heads, m.head_dim});
    forward.lse = tensor(DType::kF32, {m.batch, m.n_heads, m.length});
    forward.scale = 0.125F;
    const double pairs = static_cast<double>(m.batch * m.n_heads * m.head_dim) * static_cast<double>(m.length) *
                         static_cast<double>(m.length + 1) / 2;
    const std::string shape =
        fmt::format("{} x {} x {}/{} x {}", m.batch, m.length, m.n_heads, m.n_kv_heads, m.head_dim);
    add(forward.kName, shape, "GFLOP/s", 4 * pairs, take_turns(runner(forward), {}, options_.seconds_per_op));
    AttentionBackward backward;
    backward.q = forward.q;
    backward.k = forward.k;
    backward.v = forward.v;
    backward.o = forward.o;
    backward.lse = forward.lse;
    backward.scale = forward.scale;
    backward.d_o = tensor({m.batch, m.length, m.n_heads, m.head_dim});
    backward.d_q = tensor({m.batch, m.length, m.n_heads, m.head_dim});
    backward.d_k = tensor({m.batch, m.length, m.n_kv_heads, m.head_dim});
    backward.d_v = tensor({m.batch, m.length, m.n_kv_heads, m.head_dim});
    add(backward.kName, shape, "GFLOP/s", 10 * pairs, take_turns(runner(backward), {}, options_.seconds_per_op));
    buffers_.clear();
  }

  /// An op bound by memory against a copy that moves as many bytes.
  template <class Args>
  void moving(const Args& args, std::int64_t n, std::int64_t width) {
    const double bytes = bytes_moved(args);
    const auto half = static_cast<std::size_t>(bytes / 2);
    const Buffer from = backend_.allocate_device(half, "bench copy");
    const Buffer to = backend_.allocate_device(half, "bench copy");
    const auto copy = [&] {
      backend_.copy(stream_.get(), to.data(), from.data(), half, CopyDirection::kDeviceToDevice);
      backend_.sync(stream_.get());
    };
    add(Args::kName, fmt::format("{} x {}", n, width), "GB/s", bytes,
        take_turns(runner(args), copy, options_.seconds_per_op));
  }

  void pointwise(const BenchModel& m) {
    const std::int64_t n = m.rows();
    const TensorView x = tensor({n, m.width});
    const TensorView y = tensor({n, m.width});
    const TensorView weight = tensor({m.width});
    const TensorView rstd = tensor(DType::kF32, {n});
    RmsNormForward norm;
    norm.x = x;
    norm.weight = weight;
    norm.y = y;
    norm.rstd = rstd;
    moving(norm, n, m.width);
    RmsNormBackward norm_backward;
    norm_backward.d_y = y;
    norm_backward.x = x;
    norm_backward.weight = weight;
    norm_backward.rstd = rstd;
    norm_backward.d_x = tensor({n, m.width});
    norm_backward.d_weight = tensor({m.width});
    moving(norm_backward, n, m.width);
    Rope rope;
    rope.x = tensor({m.batch, m.length, m.n_heads, m.head_dim});
    rope.cos = tensor(DType::kF32, {m.length, m.head_dim / 2});
    rope.sin = tensor(DType::kF32, {m.length, m.head_dim / 2});
    moving(rope, n, m.n_heads * m.head_dim);
    SwigluForward swiglu;
    swiglu.gate = tensor({n, m.ffn_width});
    swiglu.up = tensor({n, m.ffn_width});
    swiglu.y = tensor({n, m.ffn_width});
    moving(swiglu, n, m.ffn_width);
    SwigluBackward swiglu_backward;
    swiglu_backward.d_y = swiglu.y;
    swiglu_backward.gate = swiglu.gate;
    swiglu_backward.up = swiglu.up;
    swiglu_backward.d_gate = tensor({n, m.ffn_width});
    swiglu_backward.d_up = tensor({n, m.ffn_width});
    moving(swiglu_backward, n, m.ffn_width);
    SumOfSquares squares;
    squares.x = swiglu.gate;
    squares.y = tensor(DType::kF32, {1});
    moving(squares, n, m.ffn_width);
    buffers_.clear();
  }

  void cross_entropy(const BenchModel& m) {
    const std::int64_t n = m.rows();
    CrossEntropyChunk chunk;
    chunk.logits = tensor({n, m.vocabulary});
    chunk.targets = tensor(DType::kI32, {n});
    chunk.lse = tensor(DType::kF32, {n});
    chunk.target_logit = tensor(DType::kF32, {n});
    moving(chunk, n, m.vocabulary);
    CrossEntropyBackward backward;
    backward.logits = chunk.logits;
    backward.targets = chunk.targets;
    backward.lse = chunk.lse;
    moving(backward, n, m.vocabulary);
    buffers_.clear();
  }

  Backend& backend_;
  OpBenchOptions options_;
  const std::function<void(const OpBenchRow&)>& report_;
  DType dtype_ = DType::kF32;
  std::vector<Buffer> buffers_;
  std::unique_ptr<Stream> stream_;  // destroyed first: it waits for work on the buffers
  ThreadPool pool_;
};

}  // namespace

std::vector<OpBenchRow> bench_ops(Backend& backend, const OpBenchOptions& options,
                                  const std::function<void(const OpBenchRow&)>& report) {
  OpBench bench(backend, options, report);
  for (const BenchModel& model : {kTiny, kSlice1B}) {
    for (const DType dtype : {DType::kF32, DType::kBf16}) bench.run(model, dtype);
  }
  return bench.rows;
}

std::string op_bench_header() {
  return fmt::format("{:<24} {:<22} {:<5} {:>10} {:>9} {:<8} {:>9} {:>6}", "op", "shape", "dtype", "ms", "rate", "unit",
                     "yardstick", "ratio");
}

std::string to_line(const OpBenchRow& row) {
  const std::string line = fmt::format("{:<24} {:<22} {:<5} {:>10.3f} {:>9.1f} {:<8}", row.op, row.shape,
                                       to_string(row.dtype), row.ms, row.rate, row.unit);
  if (row.yardstick == 0) return line;
  return line + fmt::format(" {:>9.1f} {:>6.2f}", row.yardstick, row.rate / row.yardstick);
}

}  // namespace ferry
