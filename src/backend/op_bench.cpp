// SPDX-License-Identifier: Apache-2.0
// Each op beside its yardstick.
#include "backend/op_bench.h"

#include <fmt/core.h>

#include <algorithm>
#include <initializer_list>
#include <limits>

#include "backend/bench_timer.h"
#include "backend/cpu/plain_eigen.h"
#include "backend/cuda/product_sweep.h"
#include "backend/op_bench_cases.h"
#include "backend/op_cost.h"
#include "core/thread_pool.h"

namespace ferry {
namespace {

OpBound bound_of(const Op& op) {
  if (std::holds_alternative<Matmul>(op)) return OpBound::kProduct;
  return op_flop(op) > 0 ? OpBound::kArithmetic : OpBound::kMemory;
}

class OpBench {
 public:
  OpBench(Backend& backend, const OpBenchOptions& options, const std::function<void(const OpBenchRow&)>& report)
      : backend_(backend),
        options_(options),
        report_(report),
        pool_(options.threads),
        timer_(backend, options.device) {}

  void run(const OpBenchModel& model, DType dtype) {
    fastest_product_ = 0;
    BenchTensors tensors(backend_, timer_.stream(), dtype);
    for (const BenchGroup& build : bench_groups(model, options_.device)) {
      for (const BenchCase& each : build(tensors)) run(each, dtype);
      tensors.free_all();
    }
  }

  std::vector<OpBenchRow> rows;

 private:
  struct Measured {
    BenchTimer::Fastest fastest;
    int n_candidates = 0;
  };

  void run(const BenchCase& each, DType dtype) {
    add(each, dtype, measure(each));
    const bool has_other = bound_of(each.op) == OpBound::kArithmetic && dtype == DType::kBf16;
    if (has_other && options_.other_attention != nullptr) add_other_attention(each, dtype);
  }

  void add_other_attention(BenchCase other, DType dtype) {
    other.name += ", " + options_.other_attention_name;
    add(other, dtype, {alone(*options_.other_attention, other.op)}, false);
  }

  BenchTimer::Fastest alone(Backend& backend, const Op& op) {
    const Buffer buffer = backend_.allocate_device(backend.scratch_bytes(op), "bench scratch");
    const Scratch scratch{buffer.data(), buffer.size_bytes()};
    return timer_.take_turns([&](StreamRef stream) { backend.enqueue(stream, op, scratch); }, {},
                             options_.seconds_per_op);
  }

  Measured measure(const BenchCase& each) {
    const OpBound bound = bound_of(each.op);
    if (bound == OpBound::kArithmetic) return {alone(backend_, each.op)};
    const Buffer buffer = backend_.allocate_device(backend_.scratch_bytes(each.op), "bench scratch");
    const Scratch scratch{buffer.data(), buffer.size_bytes()};
    const BenchTimer::Work ours = [&](StreamRef stream) { backend_.enqueue(stream, each.op, scratch); };
    if (bound == OpBound::kMemory) return {beside_copy(ours, op_bytes(each.op))};
    const auto& product = std::get<Matmul>(each.op);
    return options_.device ? beside_candidates(ours, product, scratch) : Measured{beside_eigen(ours, product)};
  }

  /// A copy that moves as many bytes: it reads half of them and writes half.
  BenchTimer::Fastest beside_copy(const BenchTimer::Work& ours, double bytes) {
    const auto half = static_cast<std::size_t>(bytes / 2);
    const Buffer from = backend_.allocate_device(half, "bench copy");
    const Buffer to = backend_.allocate_device(half, "bench copy");
    const auto copy = [&](StreamRef stream) {
      backend_.copy(stream, to.data(), from.data(), half, CopyDirection::kDeviceToDevice);
    };
    return timer_.take_turns(ours, copy, options_.seconds_per_op);
  }

  /// The fastest of what cuBLASLt proposes; no yardstick where that is nothing.
  Measured beside_candidates(const BenchTimer::Work& ours, const Matmul& op, Scratch scratch) {
    const cuda::ProductSweep sweep(timer_.stream(), op, scratch);
    const auto work = [&sweep](std::size_t i) { return [&sweep, i](StreamRef) { sweep.enqueue(i); }; };
    double best_s = std::numeric_limits<double>::infinity();
    BenchTimer::Work best;
    int n_run = 0;
    for (std::size_t i = 0; i < sweep.size(); ++i) {
      if (!sweep.enqueue(i)) continue;
      backend_.sync(timer_.stream());  // the first run loads the kernel
      ++n_run;
      const double seconds = timer_.brief(work(i), best_s);
      if (seconds >= best_s) continue;
      best_s = seconds;
      best = work(i);
    }
    return {timer_.take_turns(ours, best, 2 * options_.seconds_per_op), n_run};
  }

  /// A plain f32 product in host memory.
  BenchTimer::Fastest beside_eigen(const BenchTimer::Work& ours, const Matmul& op) {
    std::vector<std::vector<float>> storage;
    const auto host = [&storage](const TensorView& view) {
      storage.emplace_back(view.elems(), 0.5F);
      return TensorView(storage.back().data(), DType::kF32, {view.shape[0], view.shape[1]});
    };
    Matmul plain = op;
    plain.a = host(op.a);
    plain.b = host(op.b);
    plain.d = host(op.d);
    const auto eigen = [&](StreamRef) { cpu::plain_eigen_product(options_.level, plain, pool_); };
    return timer_.take_turns(ours, eigen, 2 * options_.seconds_per_op);
  }

  void add(const BenchCase& each, DType dtype, const Measured& measured, bool has_yardstick = true) {
    const BenchTimer::Fastest& fastest = measured.fastest;
    const bool of_memory = bound_of(each.op) == OpBound::kMemory;
    const double work = of_memory ? op_bytes(each.op) : op_flop(each.op);
    const double scale = !of_memory && options_.device ? 1e12 : 1e9;
    OpBenchRow row;
    row.op = each.name;
    row.shape = each.shape;
    row.dtype = dtype;
    row.ms = fastest.ours * 1e3;
    row.rate = work / fastest.ours / scale;
    row.unit = of_memory ? "GB/s" : options_.device ? "TFLOP/s" : "GFLOP/s";
    row.bound = bound_of(each.op);
    row.n_candidates = measured.n_candidates;
    if (fastest.yardstick > 0) row.yardstick = work / fastest.yardstick / scale;
    if (row.bound == OpBound::kProduct) fastest_product_ = std::max(fastest_product_, row.rate);
    if (row.bound == OpBound::kArithmetic && has_yardstick) row.yardstick = fastest_product_;
    rows.push_back(row);
    report_(row);
  }

  Backend& backend_;
  const OpBenchOptions& options_;
  const std::function<void(const OpBenchRow&)>& report_;
  ThreadPool pool_;
  BenchTimer timer_;
  double fastest_product_ = 0;  // rate, of the model and dtype at hand
};

/// The row with the lowest ratio among those of `bounds` that have a yardstick; nullptr without any.
const OpBenchRow* lowest(const std::vector<OpBenchRow>& rows, std::initializer_list<OpBound> bounds) {
  const OpBenchRow* found = nullptr;
  for (const OpBenchRow& row : rows) {
    if (row.yardstick == 0 || std::ranges::find(bounds, row.bound) == bounds.end()) continue;
    if (found == nullptr || row.ratio() < found->ratio()) found = &row;
  }
  return found;
}

/// "the best of 41 to 64 cuBLASLt algorithms", or "plain Eigen".
std::string product_yardstick(const std::vector<OpBenchRow>& rows) {
  int fewest = std::numeric_limits<int>::max();
  int most = 0;
  for (const OpBenchRow& row : rows) {
    if (row.bound != OpBound::kProduct || row.yardstick == 0) continue;
    fewest = std::min(fewest, row.n_candidates);
    most = std::max(most, row.n_candidates);
  }
  return most == 0 ? "plain Eigen" : fmt::format("the best of {} to {} cuBLASLt algorithms", fewest, most);
}

std::string yardstick_of(OpBound bound, const std::vector<OpBenchRow>& rows) {
  if (bound == OpBound::kProduct) return product_yardstick(rows);
  return bound == OpBound::kArithmetic ? "the fastest product" : "a copy";
}

}  // namespace

std::vector<OpBenchModel> op_bench_models(bool device) {
  using enum DType;
  if (!device) {
    return {{16, 128, 128, 352, 4, 2, 32, 256, 16, {kF32, kBf16}},
            {1, 512, 2048, 8192, 32, 8, 64, 8192, 1, {kF32, kBf16}}};
  }
  return {{4, 2048, 2048, 8192, 32, 8, 64, 21376, 16, {kBf16, kF32}},
          {4, 2048, 4096, 14336, 32, 8, 128, 42752, 8, {kBf16}}};
}

std::vector<OpBenchRow> bench_ops(Backend& backend, const OpBenchOptions& options,
                                  const std::function<void(const OpBenchRow&)>& report) {
  OpBench bench(backend, options, report);
  for (const OpBenchModel& model : options.models) {
    for (const DType dtype : model.dtypes) bench.run(model, dtype);
  }
  return bench.rows;
}

std::vector<std::string> op_bench_summary(const std::vector<OpBenchRow>& rows) {
  using enum OpBound;
  std::vector<std::string> lines;
  const auto add = [&](const char* what, std::initializer_list<OpBound> bounds) {
    const OpBenchRow* const row = lowest(rows, bounds);
    if (row == nullptr) return;
    lines.push_back(fmt::format("{}: {} {} {}, {:.2f} of {}", what, row->op, row->shape, to_string(row->dtype),
                                row->ratio(), yardstick_of(row->bound, rows)));
  };
  add("lowest ratio of products", {kProduct});
  add("lowest ratio of attention", {kArithmetic});
  add("lowest ratio of what memory bounds", {kMemory});
  add("furthest from its bound", {kProduct, kArithmetic, kMemory});
  return lines;
}

std::string op_bench_header() {
  return fmt::format("{:<28} {:<22} {:<5} {:>10} {:>9} {:<8} {:>9} {:>6}", "op", "shape", "dtype", "ms", "rate", "unit",
                     "yardstick", "ratio");
}

std::string to_line(const OpBenchRow& row) {
  const std::string line = fmt::format("{:<28} {:<22} {:<5} {:>10.3f} {:>9.1f} {:<8}", row.op, row.shape,
                                       to_string(row.dtype), row.ms, row.rate, row.unit);
  if (row.yardstick == 0) return line + fmt::format(" {:>9} {:>6}", "-", "-");
  return line + fmt::format(" {:>9.1f} {:>6.2f}", row.yardstick, row.ratio());
}

}  // namespace ferry
