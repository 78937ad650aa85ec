// SPDX-License-Identifier: Apache-2.0
// Memory, streams, events and copies of the CUDA backend. The first device error is kept: the GPU takes no more work
// after most of them, and what it would say later is less clear.
#include "backend/cuda/cuda_backend.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>

#include "backend/cuda/cuda_memory.h"
#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/cuda_raii.h"
#include "backend/cuda/cuda_stream.h"
#include "backend/cuda/device_check.h"
#include "backend/cuda/matmul_choices.h"
#include "backend/cuda/nvtx.h"
#include "core/error.h"
#include "core/thread_pool.h"

namespace ferry::cuda {
namespace {

/// Every byte of fresh device memory in debug builds: NaN in f32 and in bf16.
[[maybe_unused]] constexpr int kPoison = 0xff;

constexpr double kGiB = 1 << 30;

/// The first device error of a backend; it stays.
class FirstFailure {
 public:
  void rethrow_if_any() const {
    if (any_.load(std::memory_order_acquire)) throw Error(ErrorKind::kDevice, message_);
  }
  /// fn(), whose first device error is kept.
  template <class Fn>
  auto guard(Fn&& fn) {
    rethrow_if_any();
    try {
      return fn();
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::kDevice) keep(error.what());
      throw;
    }
  }

 private:
  void keep(const char* message) {
    const std::scoped_lock lock(mutex_);
    if (any_.load(std::memory_order_relaxed)) return;
    message_ = message;
    any_.store(true, std::memory_order_release);
  }

  std::mutex mutex_;
  std::string message_;  // written once under mutex_, before any_ becomes true
  std::atomic<bool> any_{false};
};

class CudaEvent final : public Event {
 public:
  CudaEvent() {
    // Blocking: a thread that waits sleeps, and leaves its core to AdamW. Events keep time for elapsed_ms.
    FERRY_CUDA_CHECK(cudaEventCreateWithFlags(event_.receive(), cudaEventBlockingSync));
  }
  void record(cudaStream_t stream) {
    FERRY_CUDA_CHECK(cudaEventRecord(event_.get(), stream));
    event_was_recorded_.store(true, std::memory_order_release);
  }
  /// Asserts that the event was recorded: CUDA takes one never recorded for reached.
  cudaEvent_t recorded() const {
    const bool event_was_recorded = event_was_recorded_.load(std::memory_order_acquire);
    FERRY_ASSERT(event_was_recorded);
    return event_.get();
  }

 private:
  EventOwner event_;
  std::atomic<bool> event_was_recorded_{false};
};

CudaStream& stream_of(StreamRef stream) {
  auto* const cuda_stream = dynamic_cast<CudaStream*>(stream);
  FERRY_ASSERT(cuda_stream != nullptr);
  return *cuda_stream;
}

CudaEvent& event_of(EventRef event) {
  auto* const cuda_event = dynamic_cast<CudaEvent*>(event);
  FERRY_ASSERT(cuda_event != nullptr);
  return *cuda_event;
}

std::string describe_op(const Op& op) {
  std::string text = op_name(op);
  const auto add = [&text](Access, const char* name, const TensorView& view) {
    if (view) text += fmt::format(" {} {}", name, view.describe());
  };
  std::visit([&add](const auto& each) { each.visit(add); }, op);
  return text;
}

/// As the system says; -1 where it does not.
int numa_node_of(int device) {
  std::array<char, 32> bus_id{};  // "0000:3B:00.0"
  if (cudaDeviceGetPCIBusId(bus_id.data(), static_cast<int>(bus_id.size()), device) != cudaSuccess) {
    cudaGetLastError();  // clears it
    return -1;
  }
  std::string folder = bus_id.data();
  std::ranges::transform(folder, folder.begin(), [](unsigned char c) { return std::tolower(c); });
  std::ifstream file("/sys/bus/pci/devices/" + folder + "/numa_node");
  int node = -1;
  return file >> node ? node : -1;
}

class CudaBackend final : public Backend {
 public:
  CudaBackend(const CudaOptions& options, const cudaDeviceProp& properties, int driver_version)
      : device_(options.device),
        sync_launches_(options.sync_launches),
        host_memory_(options.pin_memory, options.threads == 0 ? available_threads() : options.threads),
        ops_(fmt::format("{} {}.{} {}", properties.name, properties.major, properties.minor,
                         properties.multiProcessorCount),
             options.choices_file, options.attention) {
    capabilities_.name = "cuda";
    capabilities_.description =
        fmt::format("{}, compute capability {}.{}, {:.1f} GiB, driver for CUDA {}, {}", properties.name,
                    properties.major, properties.minor, static_cast<double>(properties.totalGlobalMem) / kGiB,
                    cuda_version_text(driver_version), ops_.attention().describe());
    capabilities_.is_device = true;
    capabilities_.numa_node = numa_node_of(device_);
  }

  const Capabilities& capabilities() const override { return capabilities_; }

  std::unique_ptr<Stream> create_stream(const std::string& name) override {
    return call([&] { return std::make_unique<CudaStream>(device_, name); });
  }

  std::unique_ptr<Event> create_event() override {
    return call([] { return std::make_unique<CudaEvent>(); });
  }

  void record(EventRef event, StreamRef stream) override {
    call([&] { event_of(event).record(stream_of(stream).get()); });
  }

  void wait(StreamRef stream, EventRef event) override {
    call([&] { FERRY_CUDA_CHECK(cudaStreamWaitEvent(stream_of(stream).get(), event_of(event).recorded())); });
  }

  bool query(EventRef event) override {
    return call([&] {
      const cudaError_t status = cudaEventQuery(event_of(event).recorded());
      if (status == cudaErrorNotReady) {
        cudaGetLastError();
        return false;
      }
      FERRY_CUDA_CHECK(status);
      return true;
    });
  }

  void sync(EventRef event) override {
    call([&] { FERRY_CUDA_CHECK(cudaEventSynchronize(event_of(event).recorded())); });
  }

  void sync(StreamRef stream) override {
    call([&] { FERRY_CUDA_CHECK(cudaStreamSynchronize(stream_of(stream).get())); });
  }

  double elapsed_ms(EventRef begin, EventRef end) override {
    return call([&] {
      float elapsed = 0;
      const cudaError_t status = cudaEventElapsedTime(&elapsed, event_of(begin).recorded(), event_of(end).recorded());
      const bool records_were_reached = status != cudaErrorNotReady;
      FERRY_ASSERT(records_were_reached);
      FERRY_CUDA_CHECK(status);
      return static_cast<double>(elapsed);
    });
  }

  void copy(StreamRef stream, void* destination, const void* source, std::size_t size_bytes,
            CopyDirection direction) override {
    call([&] {
      if (size_bytes == 0) return;
      FERRY_ASSERT(destination != nullptr && source != nullptr);
      copy_bytes(stream_of(stream), destination, source, size_bytes, direction);
    });
  }

  std::optional<std::size_t> free_device_bytes() const override {
    use_device(device_);
    std::size_t free_bytes = 0, total_bytes = 0;
    FERRY_CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
    return free_bytes;
  }

  std::size_t scratch_bytes(const Op& op) const override {
    use_device(device_);
    return ops_.scratch_bytes(op);
  }

  std::string what_serves(const Op& op) const override {
    use_device(device_);
    return ops_.what_serves(op);
  }

  void enqueue(StreamRef stream, const Op& op, Scratch scratch) override {
    failure_.rethrow_if_any();
    check_op(op);
    const std::size_t needed_bytes = scratch_bytes(op);
    const std::size_t given_bytes = scratch.data == nullptr ? 0 : scratch.size_bytes;
    FERRY_CHECK(given_bytes >= needed_bytes, kShape, "{}: scratch has {} bytes, expected {}: ask scratch_bytes()",
                op_name(op), given_bytes, needed_bytes);
    FERRY_ASSERT(reinterpret_cast<std::uintptr_t>(scratch.data) % Buffer::kAlignment == 0);
    call([&] {
      const NvtxRange range(op_name(op));
      const cudaStream_t cuda_stream = stream_of(stream).get();
      ops_.enqueue(cuda_stream, op, scratch);
      if (sync_launches_) wait_for_op(cuda_stream, op);
    });
  }

 protected:
  void* allocate(Buffer::Place place, std::size_t size_bytes) override {
    return call([&] {
      return place == Buffer::Place::kHost ? host_memory_.allocate(size_bytes) : allocate_on_device(size_bytes);
    });
  }

  void free(Buffer::Place place, void* data, std::size_t size_bytes) noexcept override {
    try_use_device(device_);
    if (place == Buffer::Place::kHost) return host_memory_.free(data, size_bytes);
    if (cudaFree(data) != cudaSuccess) cudaGetLastError();  // after a sticky error, which was reported
  }

  std::string available(Buffer::Place place) const override {
    std::size_t free_bytes = 0, total_bytes = 0;
    if (place == Buffer::Place::kHost || cudaMemGetInfo(&free_bytes, &total_bytes) != cudaSuccess) return "";
    return fmt::format(" ({:.1f} GiB of {:.1f} GiB are free)", static_cast<double>(free_bytes) / kGiB,
                       static_cast<double>(total_bytes) / kGiB);
  }

 private:
  /// fn() with this backend's device; the first device error is kept and thrown by every later call.
  template <class Fn>
  std::invoke_result_t<Fn> call(Fn&& fn) {
    return failure_.guard([&] {
      use_device(device_);
      return fn();
    });
  }

  void copy_bytes(CudaStream& stream, void* destination, const void* source, std::size_t size_bytes,
                  CopyDirection direction) {
    cudaMemcpyKind kind = cudaMemcpyDeviceToDevice;
    if (direction == CopyDirection::kHostToDevice) {
      if (!host_memory_.pinned(source, size_bytes)) {
        return stream.staged_copies().to_device(stream.get(), destination, source, size_bytes);
      }
      kind = cudaMemcpyHostToDevice;
    } else if (direction == CopyDirection::kDeviceToHost) {
      if (!host_memory_.pinned(destination, size_bytes)) {
        return stream.staged_copies().to_host(stream.get(), destination, source, size_bytes);
      }
      kind = cudaMemcpyDeviceToHost;
    }
    FERRY_CUDA_CHECK(cudaMemcpyAsync(destination, source, size_bytes, kind, stream.get()));
  }

  static void wait_for_op(cudaStream_t stream, const Op& op) {
    const cudaError_t status = cudaStreamSynchronize(stream);
    FERRY_CHECK(
        status == cudaSuccess, kDevice,
        "{}: {} ({}) while it ran: its ids or its memory may be out of range; compute-sanitizer finds the access",
        describe_op(op), cudaGetErrorName(status), cudaGetErrorString(status));
  }

  static void* allocate_on_device(std::size_t size_bytes) {
    void* data = nullptr;
    const cudaError_t status = cudaMalloc(&data, size_bytes);
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // not sticky: the next call must not report it
      return nullptr;
    }
    FERRY_CUDA_CHECK(status);
#ifndef NDEBUG
    FERRY_CUDA_CHECK(cudaMemset(data, kPoison, size_bytes));
    FERRY_CUDA_CHECK(cudaDeviceSynchronize());
#endif
    return data;
  }

  const int device_;
  const bool sync_launches_;
  Capabilities capabilities_;
  FirstFailure failure_;
  HostMemory host_memory_;
  mutable CudaOps ops_;  // keeps plans per shape; guards itself
};

bool flag_from_environment(const char* name, bool fallback) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return fallback;
  const std::string_view value = text;
  FERRY_CHECK(value == "0" || value == "1", kConfig, "{} is '{}': expected 0 or 1", name, value);
  return value == "1";
}

DriverFacts driver_facts() {
  DriverFacts facts;
  cudaRuntimeGetVersion(&facts.runtime_version);
  if (cudaDriverGetVersion(&facts.driver_version) != cudaSuccess) facts.driver_version = 0;
  const cudaError_t status = cudaGetDeviceCount(&facts.n_devices);
  facts.too_old = status == cudaErrorInsufficientDriver;
  if (status != cudaSuccess) {
    facts.n_devices = 0;
    if (status != cudaErrorNoDevice) facts.failure = cudaGetErrorName(status);
    cudaGetLastError();
  }
  if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES")) facts.visible_devices = visible;
  return facts;
}

}  // namespace

CudaOptions cuda_options(const BackendOptions& options) {
  FERRY_CHECK(options.threads >= 0, kConfig, "threads is {}: expected 1 or more, or 0 for all that are available",
              options.threads);
  CudaOptions result;
  result.device = options.device;
  result.threads = options.threads;
  result.attention = options.attention;
  result.pin_memory = flag_from_environment("FERRY_PIN_MEMORY", true);
  result.sync_launches = flag_from_environment("FERRY_SYNC_LAUNCHES", false);
  result.choices_file = default_choices_file();
  return result;
}

std::unique_ptr<Backend> create_cuda_backend(const CudaOptions& options) {
  const DriverFacts driver = driver_facts();
  check_driver(driver, options.device);
  cudaDeviceProp properties{};
  FERRY_CUDA_CHECK(cudaGetDeviceProperties(&properties, options.device));
  check_device({options.device, properties.name, properties.major, properties.minor});
  use_device(options.device);  // makes the context, or says here why it cannot be made
  return std::make_unique<CudaBackend>(options, properties, driver.driver_version);
}

int cuda_device_count() { return driver_facts().n_devices; }

}  // namespace ferry::cuda
