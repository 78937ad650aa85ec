// SPDX-License-Identifier: Apache-2.0
// Ops are disturbed in the op table; a copy is preceded by an op that does nothing but be disturbed. Counting orders
// nothing: a thread sanitizer is to see the order that the streams make.
#include "offload/delayed_backend.h"

#include <atomic>
#include <chrono>
#include <limits>
#include <thread>

#include "backend/cpu/cpu_backend.h"
#include "core/error.h"
#include "core/rng.h"
#include "offload/forwarding_backend.h"

namespace ferry::test {
namespace {

std::atomic<std::uint64_t> seed{0};
std::atomic<std::int64_t> failing_op{-1};
std::atomic<std::int64_t> failing_copy{-1};
std::atomic<std::int64_t> nan_op{-1};
std::atomic<std::int64_t> n_ops{0};
std::atomic<std::int64_t> n_copies{0};
alignas(64) float before_copy[16];  // the Fill op on this memory stands for the start of a copy

void pause(std::int64_t index, const char* name) {
  if (seed == 0) return;
  const auto draw = CounterRng(seed, name).bits(static_cast<std::uint64_t>(index)) % 600;
  if (draw > 400) std::this_thread::sleep_for(std::chrono::microseconds(draw));
}

void write_nan(const Op& op) {
  const auto poison = [](Access how, const char*, const TensorView& view) {
    if (how == Access::kRead || !view || view.elems() == 0) return;
    if (view.dtype == DType::kF32) *view.as<float>() = std::numeric_limits<float>::quiet_NaN();
    if (view.dtype == DType::kBf16) *view.as<Bf16>() = to_bf16(std::numeric_limits<float>::quiet_NaN());
  };
  std::visit([&poison](const auto& args) { args.visit(poison); }, op);
}

void run_disturbed(const Op& op, Scratch scratch, ThreadPool& pool) {
  const auto* zero = std::get_if<Fill>(&op);
  if (zero != nullptr && zero->x.data == before_copy) {
    const std::int64_t index = n_copies.fetch_add(1, std::memory_order_relaxed);
    FERRY_CHECK(index != failing_copy, kDevice, "copy {} was made to fail", index);
    return pause(index, "copy");
  }
  const std::int64_t index = n_ops.fetch_add(1, std::memory_order_relaxed);
  FERRY_CHECK(index != failing_op, kDevice, "op {} was made to fail", index);
  pause(index, "op");
  cpu::op_table(simd_level()).run(op, scratch, pool);
  if (index == nan_op) write_nan(op);
}

std::size_t scratch_of(const Op& op) { return cpu::op_table(simd_level()).scratch_bytes(op); }

constexpr cpu::OpTable kDisturbed{SimdLevel::kScalar, run_disturbed, scratch_of};

/// An op of its own before each copy.
class DelayedBackend final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  void copy(StreamRef stream, void* destination, const void* source, std::size_t size_bytes,
            CopyDirection direction) override {
    inner().enqueue(stream, Fill{.x = TensorView(before_copy, DType::kF32, {16})});
    inner().copy(stream, destination, source, size_bytes, direction);
  }
};

}  // namespace

std::unique_ptr<Backend> create_delayed_backend(cpu::Launch launch, int threads) {
  return std::make_unique<DelayedBackend>(cpu::create_cpu_backend(kDisturbed, launch, {.threads = threads}));
}

void arm(const Disturbance& disturbance) {
  seed = disturbance.seed;
  failing_op = disturbance.failing_op;
  failing_copy = disturbance.failing_copy;
  nan_op = disturbance.nan_op;
  n_ops = 0;
  n_copies = 0;
}

std::int64_t n_ops_run() { return n_ops; }

}  // namespace ferry::test
