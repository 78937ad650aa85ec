// SPDX-License-Identifier: Apache-2.0
// Each op beside its yardstick: on the host products beside plain Eigen ones, everywhere ops bound by memory beside
// copies.
#include "backend/op_bench.h"

#include <fmt/core.h>

#include "backend/bench_timer.h"
#include "backend/cpu/plain_eigen.h"
#include "backend/op_bench_cases.h"
#include "backend/op_cost.h"
#include "core/thread_pool.h"

namespace ferry {
namespace {

class OpBench {
 public:
  OpBench(Backend& backend, const OpBenchOptions& options, const std::function<void(const OpBenchRow&)>& report)
      : backend_(backend),
        options_(options),
        report_(report),
        pool_(options.threads),
        timer_(backend, options.device) {}

  void run(const OpBenchModel& model, DType dtype) {
    BenchTensors tensors(backend_, timer_.stream(), dtype);
    for (const BenchGroup& build : bench_groups(model, options_.device)) {
      for (const BenchCase& each : build(tensors)) add(each, dtype, measure(each));
      tensors.free_all();
    }
  }

  std::vector<OpBenchRow> rows;

 private:
  BenchTimer::Fastest measure(const BenchCase& each) {
    const Buffer scratch = backend_.allocate_device(backend_.scratch_bytes(each.op), "bench scratch");
    const BenchTimer::Work ours = [&](StreamRef stream) {
      backend_.enqueue(stream, each.op, {scratch.data(), scratch.size_bytes()});
    };
    if (op_flop(each.op) == 0) return beside_copy(ours, op_bytes(each.op));
    const auto* product = std::get_if<Matmul>(&each.op);
    if (product == nullptr || options_.device) return timer_.take_turns(ours, {}, options_.seconds_per_op);
    return beside_eigen(ours, *product);
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

  void add(const BenchCase& each, DType dtype, const BenchTimer::Fastest& fastest) {
    const double flop = op_flop(each.op);
    const double work = flop > 0 ? flop : op_bytes(each.op);
    const double scale = flop > 0 && options_.device ? 1e12 : 1e9;
    const char* unit = flop == 0 ? "GB/s" : options_.device ? "TFLOP/s" : "GFLOP/s";
    OpBenchRow row = {each.name, each.shape, dtype, fastest.ours * 1e3, work / fastest.ours / scale, unit, 0};
    if (fastest.yardstick > 0) row.yardstick = work / fastest.yardstick / scale;
    rows.push_back(row);
    report_(row);
  }

  Backend& backend_;
  const OpBenchOptions& options_;
  const std::function<void(const OpBenchRow&)>& report_;
  ThreadPool pool_;
  BenchTimer timer_;
};

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

const OpBenchRow* furthest_from_yardstick(const std::vector<OpBenchRow>& rows) {
  const OpBenchRow* furthest = nullptr;
  for (const OpBenchRow& row : rows) {
    if (row.yardstick > 0 && (furthest == nullptr || row.ratio() < furthest->ratio())) furthest = &row;
  }
  return furthest;
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
