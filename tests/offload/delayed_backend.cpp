// SPDX-License-Identifier: Apache-2.0
// Ops are disturbed in the op table; a copy is preceded by an op that does nothing but be disturbed.
#include "offload/delayed_backend.h"

#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <thread>

#include "backend/cpu/cpu_backend.h"
#include "core/error.h"
#include "core/rng.h"

namespace ferry::test {
namespace {

std::atomic<std::uint64_t> seed{0};
std::atomic<std::int64_t> failing_op{-1};
std::atomic<std::int64_t> failing_copy{-1};
std::atomic<std::int64_t> n_ops{0};
std::atomic<std::int64_t> n_copies{0};
alignas(64) float before_copy[16];  // the Fill op on this memory stands for the start of a copy

void pause(std::int64_t index, const char* name) {
  if (seed == 0) return;
  const auto draw = CounterRng(seed, name).bits(static_cast<std::uint64_t>(index)) % 600;
  if (draw > 400) std::this_thread::sleep_for(std::chrono::microseconds(draw));
}

void run_disturbed(const Op& op, Scratch scratch, ThreadPool& pool) {
  const auto* zero = std::get_if<Fill>(&op);
  if (zero != nullptr && zero->x.data == before_copy) {
    const std::int64_t index = n_copies++;
    FERRY_CHECK(index != failing_copy, kDevice, "copy {} was made to fail", index);
    return pause(index, "copy");
  }
  const std::int64_t index = n_ops++;
  FERRY_CHECK(index != failing_op, kDevice, "op {} was made to fail", index);
  pause(index, "op");
  cpu::op_table(simd_level()).run(op, scratch, pool);
}

std::size_t scratch_of(const Op& op) { return cpu::op_table(simd_level()).scratch_bytes(op); }

constexpr cpu::OpTable kDisturbed{SimdLevel::kScalar, run_disturbed, scratch_of};

/// Forwards everything; only copies differ.
class DelayedBackend final : public Backend {
 public:
  explicit DelayedBackend(std::unique_ptr<Backend> inner) : inner_(std::move(inner)) {}

  const Capabilities& capabilities() const override { return inner_->capabilities(); }
  std::unique_ptr<Stream> create_stream(const std::string& name) override { return inner_->create_stream(name); }
  std::unique_ptr<Event> create_event() override { return inner_->create_event(); }
  void record(EventRef event, StreamRef stream) override { inner_->record(event, stream); }
  void wait(StreamRef stream, EventRef event) override { inner_->wait(stream, event); }
  bool query(EventRef event) override { return inner_->query(event); }
  void sync(EventRef event) override { inner_->sync(event); }
  void sync(StreamRef stream) override { inner_->sync(stream); }
  double elapsed_ms(EventRef begin, EventRef end) override { return inner_->elapsed_ms(begin, end); }
  void copy(StreamRef stream, void* destination, const void* source, std::size_t size_bytes,
            CopyDirection direction) override {
    inner_->enqueue(stream, Fill{.x = TensorView(before_copy, DType::kF32, {16})});
    inner_->copy(stream, destination, source, size_bytes, direction);
  }
  std::size_t scratch_bytes(const Op& op) const override { return inner_->scratch_bytes(op); }
  void enqueue(StreamRef stream, const Op& op, Scratch scratch) override { inner_->enqueue(stream, op, scratch); }

 protected:
  void* allocate(Buffer::Place place, std::size_t size_bytes) override {
    Buffer buffer = place == Buffer::Place::kDevice ? inner_->allocate_device(size_bytes, "test")
                                                    : inner_->allocate_host(size_bytes, "test");
    void* data = buffer.data();
    const std::scoped_lock lock(mutex_);
    buffers_.emplace(data, std::move(buffer));
    return data;
  }
  void free(Buffer::Place, void* data, std::size_t) noexcept override {
    const std::scoped_lock lock(mutex_);
    buffers_.erase(data);
  }

 private:
  std::unique_ptr<Backend> inner_;
  std::mutex mutex_;
  std::map<void*, Buffer> buffers_;  // guarded by mutex_
};

}  // namespace

std::unique_ptr<Backend> create_delayed_backend(cpu::Launch launch, int threads) {
  return std::make_unique<DelayedBackend>(cpu::create_cpu_backend(kDisturbed, launch, {.threads = threads}));
}

void arm(const Disturbance& disturbance) {
  seed = disturbance.seed;
  failing_op = disturbance.failing_op;
  failing_copy = disturbance.failing_copy;
  n_ops = 0;
  n_copies = 0;
}

}  // namespace ferry::test
