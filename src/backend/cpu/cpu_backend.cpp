// SPDX-License-Identifier: Apache-2.0
// The CPU backend: checks, then hands work to streams. Ops share one thread pool; the stream's thread takes part in it.
#include "backend/cpu/cpu_backend.h"

#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>

#include "backend/cpu/cpu_memory.h"
#include "core/error.h"
#include "core/simd.h"
#include "core/thread_pool.h"

namespace ferry::cpu {
namespace {

/// Every byte of fresh device memory in debug builds: NaN in f32 and in bf16.
[[maybe_unused]] constexpr int kPoison = 0xff;

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const auto colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "CPU";
}

CpuStream& stream_of(StreamRef stream) {
  auto* const cpu_stream = dynamic_cast<CpuStream*>(stream);
  FERRY_ASSERT(cpu_stream != nullptr);
  return *cpu_stream;
}

CpuEvent& event_of(EventRef event) {
  auto* const cpu_event = dynamic_cast<CpuEvent*>(event);
  FERRY_ASSERT(cpu_event != nullptr);
  return *cpu_event;
}

class CpuBackend final : public Backend {
 public:
  CpuBackend(const OpTable& table, Launch launch, int n_threads) : table_(table), launch_(launch), pool_(n_threads) {
    capabilities_.name = "cpu";
    capabilities_.description =
        fmt::format("{}, {}, {} thread{}{}", cpu_model(), to_string(table.level), pool_.size(),
                    pool_.size() == 1 ? "" : "s", launch == Launch::kInline ? ", synchronous" : "");
  }

  const Capabilities& capabilities() const override { return capabilities_; }

  std::unique_ptr<Stream> create_stream(const std::string& name) override {
    return std::make_unique<CpuStream>(name, launch_, failure_);
  }

  std::unique_ptr<Event> create_event() override { return std::make_unique<CpuEvent>(); }

  void record(EventRef event, StreamRef stream) override {
    failure_.rethrow_if_any();
    stream_of(stream).record(event_of(event).renew());
  }

  void wait(StreamRef stream, EventRef event) override {
    failure_.rethrow_if_any();
    stream_of(stream).wait(event_of(event).last());
  }

  bool query(EventRef event) override {
    failure_.rethrow_if_any();
    return event_of(event).last()->reached();
  }

  void sync(EventRef event) override {
    event_of(event).last()->block();
    failure_.rethrow_if_any();
  }

  void sync(StreamRef stream) override {
    stream_of(stream).sync();
    failure_.rethrow_if_any();
  }

  double elapsed_ms(EventRef begin, EventRef end) override {
    const auto elapsed = event_of(end).last()->time() - event_of(begin).last()->time();
    return std::chrono::duration<double, std::milli>(elapsed).count();
  }

  void copy(StreamRef stream, void* destination, const void* source, std::size_t size_bytes, CopyDirection) override {
    failure_.rethrow_if_any();
    if (size_bytes == 0) return;
    FERRY_ASSERT(destination != nullptr && source != nullptr);
    stream_of(stream).run([=] { std::memcpy(destination, source, size_bytes); });
  }

  std::size_t scratch_bytes(const Op& op) const override { return table_.scratch_bytes(op); }
  std::string what_serves(const Op& op) const override {
    const bool attends = std::holds_alternative<AttentionForward>(op) || std::holds_alternative<AttentionBackward>(op);
    return attends ? "the CPU backend's own kernels" : "";
  }

  void enqueue(StreamRef stream, const Op& op, Scratch scratch) override {
    failure_.rethrow_if_any();
    check_op(op);
    const std::size_t needed_bytes = table_.scratch_bytes(op);
    const std::size_t given_bytes = scratch.data == nullptr ? 0 : scratch.size_bytes;
    FERRY_CHECK(given_bytes >= needed_bytes, kShape, "{}: scratch has {} bytes, expected {}: ask scratch_bytes()",
                op_name(op), given_bytes, needed_bytes);
    FERRY_ASSERT(reinterpret_cast<std::uintptr_t>(scratch.data) % Buffer::kAlignment == 0);
    stream_of(stream).run([this, op, scratch] { table_.run(op, scratch, pool_); });
  }

 protected:
  void* allocate(Buffer::Place place, std::size_t size_bytes) override {
    void* data = allocate_memory(size_bytes);
#ifndef NDEBUG
    if (data != nullptr && place == Buffer::Place::kDevice) std::memset(data, kPoison, size_bytes);
#else
    static_cast<void>(place);
#endif
    return data;
  }

  void free(Buffer::Place, void* data, std::size_t size_bytes) noexcept override { free_memory(data, size_bytes); }

 private:
  const OpTable& table_;
  const Launch launch_;
  Capabilities capabilities_;
  Failure failure_;
  ThreadPool pool_;
};

}  // namespace

std::unique_ptr<Backend> create_cpu_backend(const OpTable& table, Launch launch, const BackendOptions& options) {
  FERRY_CHECK(options.threads >= 0, kConfig, "threads is {}: expected 1 or more, or 0 for all that are available",
              options.threads);
  return std::make_unique<CpuBackend>(table, launch, options.threads == 0 ? available_threads() : options.threads);
}

}  // namespace ferry::cpu
