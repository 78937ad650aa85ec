// SPDX-License-Identifier: Apache-2.0
// The one interface between ferry and a device: memory, streams, events, copies, ops. It knows no Llama.
//
// Threads: one thread at a time may call enqueue, copy, record and wait on a given stream; query, sync and elapsed_ms
// may be called from any thread. An op that fails while it runs makes the backend fail at its next call (a sticky
// error).
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "backend/ops.h"

namespace ferry {

class Backend;

/// Memory of a backend, freed by its destructor. Aligned to kAlignment.
class Buffer {
 public:
  static constexpr std::size_t kAlignment = 256;
  enum class Place { kDevice, kHost };

  Buffer() = default;
  Buffer(Backend& backend, Place place, void* data, std::size_t size_bytes);
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  void* data() const { return data_; }
  std::size_t size_bytes() const { return size_bytes_; }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  Backend* backend_ = nullptr;
  Place place_ = Place::kDevice;
  void* data_ = nullptr;
  std::size_t size_bytes_ = 0;
};

/// Owners of a stream and of an event; a backend derives its own. Views (StreamRef, EventRef) pass by value.
class Stream {
 public:
  virtual ~Stream() = default;
};
class Event {
 public:
  virtual ~Event() = default;
};
using StreamRef = Stream*;
using EventRef = Event*;

struct Capabilities {
  std::string name;         // "cpu", "cuda"
  std::string description;  // "Intel Xeon, avx512, 2 threads"
  bool is_device = false;   // false: device memory is host memory too
  int numa_node = -1;       // of the host, next to the device; -1 = not known
};

/// Memory that an op may use while it runs; contents are undefined before and after.
struct Scratch {
  void* data = nullptr;
  std::size_t size_bytes = 0;
};

enum class CopyDirection { kHostToDevice, kDeviceToHost, kDeviceToDevice };

/// What a backend's ops need beside their tensors, and who serves them: all that a plan must know of it.
class ScratchSizes {
 public:
  virtual ~ScratchSizes() = default;
  /// Scratch that `op` needs; depends on shapes and dtypes alone (data pointers may be null).
  virtual std::size_t scratch_bytes(const Op& op) const = 0;
  /// False where scratch_bytes(op) is an upper bound.
  virtual bool is_exact(const Op&) const { return true; }
  /// For people: what computes an attention op, and why that; empty for other ops. Depends as above.
  virtual std::string what_serves(const Op& op) const = 0;
};

/// Outlives its buffers, streams and events. After an op failed no later work runs; its memory stays valid.
class Backend : public ScratchSizes {
 public:
  virtual const Capabilities& capabilities() const = 0;

  /// Both throw Error{kMemory} with the purpose and the size; 0 bytes give an empty Buffer. Host memory is what copies
  /// are fastest from (pinned). Contents are undefined.
  Buffer allocate_device(std::size_t size_bytes, const std::string& purpose);
  Buffer allocate_host(std::size_t size_bytes, const std::string& purpose);
  /// Bytes allocated now through this backend.
  std::size_t device_bytes() const { return device_bytes_; }
  std::size_t host_bytes() const { return host_bytes_; }

  /// Device memory that is free now; absent where device memory is the host's.
  virtual std::optional<std::size_t> free_device_bytes() const { return {}; }

  /// Work on one stream runs in order; streams run concurrently. Destroying a stream first waits for its work.
  virtual std::unique_ptr<Stream> create_stream(const std::string& name) = 0;
  virtual std::unique_ptr<Event> create_event() = 0;

  /// Marks the end of all work enqueued on `stream` so far. An event may be recorded again: later waits see the last
  /// one.
  virtual void record(EventRef event, StreamRef stream) = 0;
  /// Later work on `stream` starts after the event's last record at the time of this call. Waiting on an event never
  /// recorded is our bug: asserted, here and in query, sync and elapsed_ms.
  virtual void wait(StreamRef stream, EventRef event) = 0;
  /// True when the event's last record is reached. Never blocks.
  virtual bool query(EventRef event) = 0;
  /// Block the calling thread.
  virtual void sync(EventRef event) = 0;
  virtual void sync(StreamRef stream) = 0;
  /// Milliseconds between two reached records.
  virtual double elapsed_ms(EventRef begin, EventRef end) = 0;

  /// Asynchronous copy of flat bytes. The host side comes from allocate_host.
  virtual void copy(StreamRef stream, void* destination, const void* source, std::size_t size_bytes,
                    CopyDirection direction) = 0;

  /// Checks the op (check_op), then enqueues it. Returns before it runs.
  virtual void enqueue(StreamRef stream, const Op& op, Scratch scratch = {}) = 0;

  /// For backends that look for races (trace_backend.h); the others have nothing to do here. What the calling thread
  /// reads or writes in memory that copies use, and the order between host threads that locks make: what came before
  /// publish(key) on one thread is known to the thread that calls observe(key) later.
  virtual void host_access(Access, const void*, std::size_t, const char*) {}
  virtual void publish(const void*) {}
  virtual void observe(const void*) {}

 protected:
  friend class Buffer;
  virtual void* allocate(Buffer::Place place, std::size_t size_bytes) = 0;  // nullptr when there is not enough
  virtual void free(Buffer::Place place, void* data, std::size_t size_bytes) noexcept = 0;
  /// What the memory that allocate() gave is for; for backends that name it in messages.
  virtual void name_memory(const void*, const std::string&) {}
  /// For messages: " (3.1 GiB of 11.9 GiB are free)", or empty where nobody knows.
  virtual std::string available(Buffer::Place) const { return ""; }

 private:
  Buffer allocate_buffer(Buffer::Place place, std::size_t size_bytes, const std::string& purpose);

  std::atomic<std::size_t> device_bytes_{0};  // atomic: buffers may be freed by any thread
  std::atomic<std::size_t> host_bytes_{0};
};

/// What the CUDA backend computes attention with. Ops that the named one does not take run on plain kernels.
enum class AttentionChoice {
  kAuto,  // ferry's fused kernels where they take an op, else cuDNN
  kCudnn,
  kFerry,
};

struct BackendOptions {
  int threads = 0;  // of the CPU backend's ops; 0 = all that are available
  int device = 0;   // of the CUDA backend, among the GPUs that CUDA_VISIBLE_DEVICES shows
  AttentionChoice attention = AttentionChoice::kAuto;
};

/// Names: "cpu", "cpu:sync" (every call runs before it returns), "cuda", "auto" (cuda where it works, else cpu; says
/// so), "check:A,B" (A, with every op compared with B's: check_backend.h), "trace:cpu" (looks for races; takes options:
/// trace_backend.h). Throws Error{kConfig} for an unknown name, Error{kDevice} where the device cannot be used.
std::unique_ptr<Backend> create_backend(const std::string& name, const BackendOptions& options);

/// For plans on a machine without a GPU: upper bounds of the scratch of "cuda". Null for other names, and where there
/// is a GPU to ask.
std::unique_ptr<ScratchSizes> create_scratch_bound(const std::string& name, const BackendOptions& options);

}  // namespace ferry
