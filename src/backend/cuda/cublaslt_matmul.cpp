// SPDX-License-Identifier: Apache-2.0
// Chooses the algorithm of each product once: from the file, by time, or the library's first proposal.
//
// Timing runs on the op's own stream, operands and output: what stands there is about to be overwritten, and nothing
// else may read it at this point of the stream. Only an output that is added to is replaced by a copy.
#include "backend/cuda/cublaslt_matmul.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "backend/cuda/cublaslt_plan.h"
#include "backend/cuda/matmul_choices.h"
#include "core/error.h"
#include "core/log.h"
#include "kernels/matmul_plain.h"

namespace ferry::cuda {
namespace {

constexpr int kTimedRuns = 5;
// A candidate whose first timed run is this much slower than the best median is not run again.
constexpr double kHopeless = 1.25;
constexpr double kRefused = std::numeric_limits<double>::infinity();

/// The strides of a matrix that may be transposed.
kernels::MatmulPlainOperand plain_operand(const TensorView& view, bool transposed) {
  const std::int64_t row_stride = view.stride[0];
  return {view.data, transposed ? 1 : row_stride, transposed ? row_stride : 1};
}

kernels::Type kernel_type(DType dtype) { return dtype == DType::kBf16 ? kernels::Type::kBf16 : kernels::Type::kF32; }

void enqueue_plain(const Matmul& op, const Product& product, cudaStream_t stream) {
  kernels::MatmulPlainArgs args;
  args.in = kernel_type(op.a.dtype);
  args.out = kernel_type(op.d.dtype);
  args.m = product.m;
  args.n = product.n;
  args.k = product.k;
  args.a = plain_operand(op.a, op.transpose_a);
  args.b = plain_operand(op.b, op.transpose_b);
  args.c = {op.c.data, op.c ? op.c.stride[0] : 0};
  args.d = {op.d.data, op.d.stride[0]};
  FERRY_CUDA_CHECK(kernels::launch_matmul_plain(args, stream));
}

/// Runs one product several times and reads the clock of the stream.
class Stopwatch {
 public:
  Stopwatch() {
    for (EventOwner& mark : marks_) FERRY_CUDA_CHECK(cudaEventCreate(mark.receive()));
  }

  /// Median of `n_runs` <= kTimedRuns runs; kRefused when one fails (`run` says false). Blocks.
  template <class Run>
  double median_ms(cudaStream_t stream, int n_runs, Run&& run) {
    FERRY_CUDA_CHECK(cudaEventRecord(marks_[0].get(), stream));
    for (int i = 0; i < n_runs; ++i) {
      if (!run()) return kRefused;
      FERRY_CUDA_CHECK(cudaEventRecord(marks_[i + 1].get(), stream));
    }
    FERRY_CUDA_CHECK(cudaEventSynchronize(marks_[n_runs].get()));
    std::vector<float> times(static_cast<std::size_t>(n_runs));
    for (int i = 0; i < n_runs; ++i) {
      FERRY_CUDA_CHECK(cudaEventElapsedTime(&times[static_cast<std::size_t>(i)], marks_[i].get(), marks_[i + 1].get()));
    }
    std::nth_element(times.begin(), times.begin() + n_runs / 2, times.end());
    return times[static_cast<std::size_t>(n_runs / 2)];
  }

 private:
  EventOwner marks_[kTimedRuns + 1];
};

/// Operands of timing runs: those of the op, but a copy of d where it is added to.
struct TimingOperands {
  Operands operands;
  DeviceMemoryOwner copy;
};

/// nullopt when there is no memory for the copy.
std::optional<TimingOperands> timing_operands(const Matmul& op, const Product& product, cudaStream_t stream) {
  TimingOperands timing{Operands(op), {}};
  if (product.addend != Addend::kInPlace) return timing;
  const auto skew = reinterpret_cast<std::uintptr_t>(op.d.data) % 16;  // the copy has d's alignment
  const std::size_t span_bytes = op.d.span_bytes();
  if (cudaMalloc(timing.copy.receive(), span_bytes + skew) != cudaSuccess) {
    cudaGetLastError();
    return std::nullopt;
  }
  void* const d = static_cast<std::byte*>(timing.copy.get()) + skew;
  FERRY_CUDA_CHECK(cudaMemcpyAsync(d, op.d.data, span_bytes, cudaMemcpyDeviceToDevice, stream));
  timing.operands.c = d;
  timing.operands.d = d;
  return timing;
}

/// Descriptors, and the algorithm unless cuBLASLt refuses the product.
struct Plan {
  ProductDescriptors descriptors;
  std::optional<cublasLtMatmulAlgo_t> algo;
};

}  // namespace

struct CublasLtMatmul::State {
  State(const std::string& device, std::filesystem::path choices_file)
      : choices(std::move(choices_file), fmt::format("{} cublasLt {}", device, cublasLtGetVersion())) {
    FERRY_CUBLAS_CHECK(cublasLtCreate(handle.receive()));
  }

  /// The plan of the product; the first call makes it.
  Plan& plan_for(const Matmul& op, const Product& product, Scratch scratch, cudaStream_t stream);
  std::optional<cublasLtMatmulAlgo_t> choose(const Matmul& op, const Product& product,
                                             const ProductDescriptors& descriptors, Scratch scratch,
                                             cudaStream_t stream);
  /// The index of the fastest; nullopt when none ran. Blocks.
  std::optional<std::size_t> fastest(const std::vector<Candidate>& candidates, const ProductDescriptors& descriptors,
                                     const Operands& operands, Scratch scratch, cudaStream_t stream,
                                     const std::string& name);

  Owner<cublasLtHandle_t, cublasLtDestroy> handle;
  MatmulChoices choices;
  mutable std::mutex mutex;
  std::map<Product, Plan> plans;  // guarded by mutex; entries stay
  int n_timed = 0;                // guarded by mutex
};

Plan& CublasLtMatmul::State::plan_for(const Matmul& op, const Product& product, Scratch scratch, cudaStream_t stream) {
  const auto found = plans.find(product);
  if (found != plans.end()) return found->second;
  Plan plan{ProductDescriptors(product), std::nullopt};
  plan.algo = choose(op, product, plan.descriptors, scratch, stream);
  return plans.emplace(product, std::move(plan)).first->second;
}

std::optional<cublasLtMatmulAlgo_t> CublasLtMatmul::State::choose(const Matmul& op, const Product& product,
                                                                  const ProductDescriptors& descriptors,
                                                                  Scratch scratch, cudaStream_t stream) {
  // cuBLASLt rounds a bf16 output twice when it adds to it in place (13.1 on an H200: 64 x 128 x 96 is off by one
  // step).
  if (product.addend == Addend::kInPlace && op.d.dtype == DType::kBf16) return std::nullopt;
  const std::string name = product.describe();
  const bool is_timed = product.flop() >= kTimedFlop;
  if (const std::optional<std::string> kept = is_timed ? choices.find(name) : std::nullopt) {
    if (const auto candidate = descriptors.named(handle.get(), kWorkspaceBytes, *kept)) return candidate->algo;
    log::warn("matmul {}: cuBLASLt does not run the kept choice '{}'; it is timed again", name, *kept);
    choices.forget(name);
  }

  const auto candidates = descriptors.candidates(handle.get(), kWorkspaceBytes, is_timed ? kCandidates : 1);
  if (candidates.empty()) {
    const log::Level level = is_timed ? log::Level::kWarn : log::Level::kDebug;
    log::message(level, fmt::format("matmul {}: cuBLASLt refuses it, a plain kernel runs, which is slow", name));
    return std::nullopt;
  }
  if (!is_timed) return candidates.front().algo;
  const std::optional<TimingOperands> timing = timing_operands(op, product, stream);
  if (!timing) {
    log::warn("matmul {}: no device memory to time it, the library's first proposal runs", name);
    return candidates.front().algo;
  }
  const std::optional<std::size_t> best = fastest(candidates, descriptors, timing->operands, scratch, stream, name);
  if (!best) return std::nullopt;
  const std::string holds = choices.keep(name, candidates[*best].name);
  const auto held = descriptors.named(handle.get(), kWorkspaceBytes, holds);
  return held ? held->algo : candidates[*best].algo;
}

std::optional<std::size_t> CublasLtMatmul::State::fastest(const std::vector<Candidate>& candidates,
                                                          const ProductDescriptors& descriptors,
                                                          const Operands& operands, Scratch scratch,
                                                          cudaStream_t stream, const std::string& name) {
  ++n_timed;
  Stopwatch stopwatch;
  std::optional<std::size_t> best;
  double best_ms = kRefused;
  double first_ms = kRefused;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    const auto run = [&] { return descriptors.try_run(handle.get(), candidates[i].algo, operands, scratch, stream); };
    if (!run()) continue;  // warms up: the first run loads the kernel
    double ms = stopwatch.median_ms(stream, 1, run);
    if (ms < kHopeless * best_ms) ms = stopwatch.median_ms(stream, kTimedRuns, run);
    if (i == 0) first_ms = ms;
    if (ms < best_ms) {
      best = i;
      best_ms = ms;
    }
  }
  FERRY_CUDA_CHECK(cudaStreamSynchronize(stream));
  if (best) {
    log::debug("matmul {}: candidate {} of {} takes {:.3f} ms, the first {:.3f} ms: {}", name, *best + 1,
               candidates.size(), best_ms, first_ms, candidates[*best].name);
  }
  return best;
}

CublasLtMatmul::CublasLtMatmul(const std::string& device, std::filesystem::path choices_file)
    : state_(std::make_unique<State>(device, std::move(choices_file))) {}

CublasLtMatmul::~CublasLtMatmul() = default;

void CublasLtMatmul::enqueue(const Matmul& op, Scratch scratch, cudaStream_t stream) {
  FERRY_ASSERT(scratch.data != nullptr && scratch.size_bytes >= kWorkspaceBytes);
  scratch.size_bytes = kWorkspaceBytes;
  const Product product(op);
  const std::scoped_lock lock(state_->mutex);
  const Plan& plan = state_->plan_for(op, product, scratch, stream);
  if (!plan.algo) return enqueue_plain(op, product, stream);
  FERRY_CUBLAS_CHECK(plan.descriptors.run(state_->handle.get(), *plan.algo, Operands(op), scratch, stream));
  // A launch that failed although the library reports success.
  if (const cudaError_t launch = cudaGetLastError(); launch != cudaSuccess) throw_cuda_error(launch, "cublasLtMatmul");
}

int CublasLtMatmul::n_timed() const {
  const std::scoped_lock lock(state_->mutex);
  return state_->n_timed;
}

}  // namespace ferry::cuda
