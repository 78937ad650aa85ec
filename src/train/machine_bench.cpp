// SPDX-License-Identifier: Apache-2.0
// Everything runs as it does in a step: copies on streams of their own, AdamW on its pool, products back to back.
#include "train/machine_bench.h"

#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <numeric>

#include "backend/bench_timer.h"
#include "config/presets.h"
#include "core/error.h"
#include "core/human_units.h"
#include "core/thread_pool.h"
#include "offload/host_memory.h"
#include "offload/step_floor.h"
#include "train/copy_load.h"
#include "train/step_bench.h"
#include "train/stopwatch.h"

namespace ferry {
namespace {

constexpr std::size_t kEnginePiece = static_cast<std::size_t>(EngineOptions{}.piece_bytes);
constexpr int kLabel = 26;
constexpr int kColumn = 19;

using Loads = std::vector<std::unique_ptr<CopyLoad>>;
using Report = std::function<void(const std::string&)>;

std::string gigabytes(double bytes_s) { return fmt::format("{:.1f}", bytes_s / 1e9); }

/// Host memory as the engine has it, half of it for each direction, and device memory of two large pieces for each.
class CopyPlaces {
 public:
  CopyPlaces(Backend& backend, const MachineBenchOptions& options, ThreadPool& first_touch) : backend_(backend) {
    const std::size_t largest = std::ranges::max(options.piece_bytes);
    FERRY_ASSERT(options.slab_bytes / 2 >= largest && std::ranges::count(options.piece_bytes, kEnginePiece) == 1);
    for (HostMemory::Id& id : slabs_) id = host_.add("slab of copies", options.slab_bytes / 2);
    host_.allocate(backend, first_touch);
    slab_bytes_ = options.slab_bytes / 2;
    const std::unique_ptr<Stream> stream = backend.create_stream("fill");
    for (Buffer& buffer : device_) {
      buffer = backend.allocate_device(2 * largest, "copies");
      const auto elems = static_cast<std::int64_t>(buffer.size_bytes() / size_of(DType::kF32));
      backend.enqueue(stream.get(), Fill{.x = TensorView(buffer.data(), DType::kF32, {elems})});  // touches its pages
    }
    backend.sync(stream.get());
  }

  /// Starts copies in these directions.
  Loads start(std::initializer_list<CopyDirection> directions, std::size_t piece_bytes) const {
    Loads loads;
    for (const CopyDirection direction : directions) {
      const std::size_t i = direction == CopyDirection::kHostToDevice ? 0 : 1;
      const Buffer& device = device_.at(i);
      loads.push_back(std::make_unique<CopyLoad>(
          backend_, direction,
          CopyLoad::Places{.host = {host_.as<std::byte>(slabs_.at(i)), slab_bytes_},
                           .device = {static_cast<std::byte*>(device.data()), device.size_bytes()}},
          piece_bytes));
    }
    return loads;
  }
  Loads start_both(std::size_t piece_bytes) const {
    return start({CopyDirection::kHostToDevice, CopyDirection::kDeviceToHost}, piece_bytes);
  }

 private:
  Backend& backend_;
  HostMemory host_;
  std::array<HostMemory::Id, 2> slabs_{};
  std::size_t slab_bytes_ = 0;
  std::array<Buffer, 2> device_;
};

CopyRates measure_copies(const CopyPlaces& places, std::size_t piece_bytes, double seconds) {
  const double third = seconds / 3;
  CopyRates rates{.piece_bytes = piece_bytes};
  rates.h2d = copy_rates(places.start({CopyDirection::kHostToDevice}, piece_bytes), third).front();
  rates.d2h = copy_rates(places.start({CopyDirection::kDeviceToHost}, piece_bytes), third).front();
  const std::vector<double> both = copy_rates(places.start_both(piece_bytes), third);
  rates.h2d_both = both.front();
  rates.d2h_both = both.back();
  return rates;
}

double copied_bytes(const Loads& loads) {
  const auto add = [](double sum, const auto& load) { return sum + load->progress().bytes; };
  return std::accumulate(loads.begin(), loads.end(), 0.0, add);
}

/// The passes take turns, so that all meet the same noise. `loads` may be empty.
HostRates measure_host(HostPasses& passes, ThreadPool& pool, const MachineBenchOptions& options, const Loads& loads) {
  HostRates rates;  // bytes until they are divided
  std::array<double, HostPasses::kCount> seconds{};
  const Stopwatch watch;
  do {
    for (std::size_t pass = 0; pass < HostPasses::kCount; ++pass) {
      for (int turn = 0; turn < HostPasses::turns(pass); ++turn) {
        const double copied = copied_bytes(loads);
        const Stopwatch one;
        passes.run(pass, options.level, pool);
        seconds[pass] += one.seconds();
        rates.passes[pass] += passes.bytes(pass);
        rates.copies[pass] += copied_bytes(loads) - copied;
      }
    }
  } while (watch.seconds() < options.seconds);
  for (std::size_t pass = 0; pass < HostPasses::kCount; ++pass) {
    rates.passes[pass] /= seconds[pass];
    rates.copies[pass] /= seconds[pass];
  }
  return rates;
}

std::string copies_header() {
  return fmt::format("{:<{}} {:>{}} {:>{}} {:>{}} {:>{}}", "copies, GB/s", kLabel, "to device", kColumn, "to host",
                     kColumn, "both: to device", kColumn, "to host", kColumn);
}

std::string to_line(const CopyRates& rates) {
  std::string text = fmt::format("{:<{}}", "in pieces of " + human_bytes(rates.piece_bytes), kLabel);
  for (const double rate : {rates.h2d, rates.d2h, rates.h2d_both, rates.d2h_both}) {
    text += fmt::format(" {:>{}}", gigabytes(rate), kColumn);
  }
  return text;
}

std::string host_header() {
  std::string text = fmt::format("{:<{}} {:>8} {:>9}", "host memory, GB/s", kLabel, "triad", "in place");
  for (std::size_t i = 0; i < HostPasses::kFormats; ++i) {
    text += fmt::format(" {:>{}}", HostPasses::format_label(i), kColumn);
  }
  return text;
}

/// `with_share`: of the pass in place, beside AdamW's.
std::string host_line(const std::string& label, const std::array<double, HostPasses::kCount>& rates, bool with_share) {
  const double in_place = rates[HostPasses::kInPlace];
  std::string text =
      fmt::format("{:<{}} {:>8} {:>9}", label, kLabel, gigabytes(rates[HostPasses::kTriad]), gigabytes(in_place));
  for (std::size_t pass = HostPasses::kAdamw; pass < HostPasses::kCount; ++pass) {
    const std::string share = with_share ? fmt::format(" {:.2f}", rates.at(pass) / in_place) : "     ";
    text += fmt::format(" {:>{}}", gigabytes(rates.at(pass)) + share, kColumn);
  }
  return text;
}

void report_beside_copies(const HostRates& rates, const Report& report) {
  std::array<double, HostPasses::kCount> sums = rates.passes;
  for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += rates.copies[i];
  report(host_line("both copies beside", rates.passes, true));
  report(host_line("  these copies", rates.copies, false));
  report(host_line("  all together", sums, false));
}

void measure_floor(Backend& backend, const MachineBenchOptions& options, MachineBenchResult& result,
                   const Report& report) {
  StepFloor floor(backend, options.model, options.step);
  const auto measure = [&](FloorPart part, const char* name) {
    const std::vector<double> step_ms = floor.run(options.seconds, part);
    const double total_ms = std::accumulate(step_ms.begin(), step_ms.end(), 0.0);
    const double rate = floor.flop(part) * static_cast<double>(step_ms.size()) / total_ms * 1e3;
    report(fmt::format("{:<{}} {:>{}}", name, kLabel, describe_flop(rate) + "/s", kColumn));
    return rate;
  };
  result.step_flop_s = measure(FloorPart::kAll, "products and attention");
  result.products_flop_s = measure(FloorPart::kProducts, "products");
  result.attention_forward_flop_s = measure(FloorPart::kAttentionForward, "attention forward");
  result.attention_backward_flop_s = measure(FloorPart::kAttentionBackward, "attention backward");
}

void measure_device_memory(Backend& backend, const MachineBenchOptions& options, MachineBenchResult& result,
                           const Report& report) {
  const std::size_t size = options.slab_bytes / 2;
  const Buffer from = backend.allocate_device(size, "copies within the device");
  const Buffer to = backend.allocate_device(size, "copies within the device");
  BenchTimer timer(backend, backend.capabilities().is_device);
  const auto copy = [&](StreamRef stream) {
    backend.copy(stream, to.data(), from.data(), size, CopyDirection::kDeviceToDevice);
  };
  result.device_bytes_s = 2 * static_cast<double>(size) / timer.take_turns(copy, {}, options.seconds).ours;
  report(fmt::format("{:<{}} {:>{}}", "copies within the device", kLabel, gigabytes(result.device_bytes_s) + " GB/s",
                     kColumn));
}

void measure_host_and_copies(Backend& backend, const MachineBenchOptions& options, MachineBenchResult& result,
                             const Report& report) {
  ThreadPool pool(options.pool);
  const CopyPlaces places(backend, options, pool);
  report(copies_header());
  for (const std::size_t piece_bytes : options.piece_bytes) {
    result.copies.push_back(measure_copies(places, piece_bytes, options.seconds));
    report(to_line(result.copies.back()));
  }
  HostPasses passes(backend, options.n_params, pool);
  report("");
  report(host_header());
  result.alone = measure_host(passes, pool, options, {});
  report(host_line(options.pool.n_threads == 1 ? "1 thread" : fmt::format("{} threads", options.pool.n_threads),
                   result.alone.passes, true));
  result.beside_copies = measure_host(passes, pool, options, places.start_both(kEnginePiece));
  report_beside_copies(result.beside_copies, report);
}

/// Of the formats of AdamW.
double mean(const std::array<double, HostPasses::kCount>& rates) {
  return std::accumulate(rates.begin() + HostPasses::kAdamw, rates.end(), 0.0) / HostPasses::kFormats;
}

}  // namespace

void choose_sizes(bool is_device, MachineBenchOptions& options) {
  if (!is_device) options.slab_bytes = std::size_t{256} << 20;
  options.model = resolve_model(is_device ? "llama-3.2-1b" : "tiny");
  options.step.dtype = is_device ? DType::kBf16 : DType::kF32;
  options.step.batch_size = 4;
  options.step.seq_len = is_device ? 2048 : 128;
}

MachineBenchResult bench_machine(Backend& backend, const MachineBenchOptions& options, const Report& report) {
  MachineBenchResult result;
  measure_host_and_copies(backend, options, result, report);
  report("");
  measure_floor(backend, options, result, report);
  measure_device_memory(backend, options, result, report);
  return result;
}

MachineRates rates_of(const MachineBenchResult& result) {
  const auto copies = std::ranges::find(result.copies, kEnginePiece, &CopyRates::piece_bytes);
  FERRY_ASSERT(copies != result.copies.end());
  return {.products_flop_s = result.products_flop_s,
          .attention_forward_flop_s = result.attention_forward_flop_s,
          .attention_backward_flop_s = result.attention_backward_flop_s,
          .device_bytes_s = result.device_bytes_s,
          .h2d_bytes_s = copies->h2d,
          .h2d_both_bytes_s = copies->h2d_both,
          .d2h_both_bytes_s = copies->d2h_both,
          .adamw_bytes_s = mean(result.alone.passes),
          .host_bytes_s = mean(result.beside_copies.passes) + mean(result.beside_copies.copies)};
}

}  // namespace ferry
