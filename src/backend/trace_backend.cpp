// SPDX-License-Identifier: Apache-2.0
// Every call is first told to the race detector, then handed to the CPU backend, both under one mutex; only sync blocks
// outside it. The detector works on the calls alone, so its verdict does not depend on when work runs.
#include "backend/trace_backend.h"

#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "backend/cpu/cpu_stream.h"
#include "backend/race_detector.h"
#include "core/error.h"
#include "core/rng.h"

namespace ferry {
namespace {

using std::chrono::microseconds;

/// Unlike std::thread::id never used again by a later thread.
std::uint64_t this_thread_number() {
  static std::atomic<std::uint64_t> n_threads{0};
  thread_local const std::uint64_t number = n_threads++;
  return number;
}

/// A stream or a thread, and the last that it did.
struct Position {
  std::size_t actor = 0;
  Work after;
};

class TraceStream final : public Stream {
 public:
  TraceStream(std::unique_ptr<Stream> stream, std::size_t actor_in)
      : inner(std::move(stream)), cpu(dynamic_cast<cpu::CpuStream*>(inner.get())), actor(actor_in) {
    FERRY_ASSERT(cpu != nullptr);
  }

  const std::unique_ptr<Stream> inner;
  cpu::CpuStream* const cpu;  // the same
  const std::size_t actor;
};

/// Members but `inner` are guarded by the backend's mutex.
class TraceEvent final : public Event {
 public:
  explicit TraceEvent(std::unique_ptr<Event> event) : inner(std::move(event)) {}

  const std::unique_ptr<Event> inner;
  bool recorded = false;
  Position position;
  VectorClock clock;
};

TraceStream& stream_of(StreamRef stream) {
  auto* const traced = dynamic_cast<TraceStream*>(stream);
  FERRY_ASSERT(traced != nullptr);
  return *traced;
}

TraceEvent& event_of(EventRef event) {
  auto* const traced = dynamic_cast<TraceEvent*>(event);
  FERRY_ASSERT(traced != nullptr);
  return *traced;
}

const char* to_string(CopyDirection direction) {
  switch (direction) {
    case CopyDirection::kHostToDevice: return "host to device";
    case CopyDirection::kDeviceToHost: return "device to host";
    case CopyDirection::kDeviceToDevice: break;
  }
  return "device to device";
}

class TraceBackend final : public Backend {
 public:
  TraceBackend(std::unique_ptr<Backend> cpu, const TraceOptions& options) : options_(options), inner_(std::move(cpu)) {
    capabilities_ = inner_->capabilities();
    capabilities_.name = "trace";
    capabilities_.description += ", traced for races";
  }

  const Capabilities& capabilities() const override { return capabilities_; }

  std::unique_ptr<Stream> create_stream(const std::string& name) override {
    const std::scoped_lock lock(mutex_);
    const std::size_t actor = detector_.add_actor(RaceDetector::ActorKind::kStream, "stream " + name);
    return std::make_unique<TraceStream>(inner_->create_stream(name), actor);
  }

  std::unique_ptr<Event> create_event() override { return std::make_unique<TraceEvent>(inner_->create_event()); }

  void record(EventRef event, StreamRef stream) override {
    const std::scoped_lock lock(mutex_);
    rethrow_if_failed();
    TraceEvent& traced = event_of(event);
    const TraceStream& by = stream_of(stream);
    inner_->record(traced.inner.get(), by.inner.get());
    follow_caller(by);
    traced.recorded = true;
    traced.position = {by.actor, detector_.last_work(by.actor)};
    traced.clock = detector_.clock(by.actor);
  }

  void wait(StreamRef stream, EventRef event) override {
    const std::scoped_lock lock(mutex_);
    rethrow_if_failed();
    const TraceStream& waiter = stream_of(stream);
    inner_->wait(waiter.inner.get(), recorded(event).inner.get());
    join(waiter.actor, recorded(event));
  }

  bool query(EventRef event) override {
    const std::scoped_lock lock(mutex_);
    rethrow_if_failed();
    const TraceEvent& traced = recorded(event);
    const bool reached = inner_->query(traced.inner.get());
    if (reached) detector_.clock(caller()).join(traced.clock);
    return reached;
  }

  void sync(EventRef event) override {
    {
      const std::scoped_lock lock(mutex_);
      rethrow_if_failed();
      join(caller(), recorded(event));  // nobody but the caller, who is about to block, uses what it learns
    }
    inner_->sync(event_of(event).inner.get());
  }

  void sync(StreamRef stream) override {
    {
      const std::scoped_lock lock(mutex_);
      rethrow_if_failed();
      detector_.clock(caller()).join(detector_.clock(stream_of(stream).actor));
    }
    inner_->sync(stream_of(stream).inner.get());
  }

  double elapsed_ms(EventRef begin, EventRef end) override {
    return inner_->elapsed_ms(event_of(begin).inner.get(), event_of(end).inner.get());
  }

  void copy(StreamRef stream, void* destination, const void* source, std::size_t size_bytes,
            CopyDirection direction) override {
    const std::scoped_lock lock(mutex_);
    rethrow_if_failed();
    if (size_bytes == 0) return;
    const TraceStream& on = stream_of(stream);
    begin(on, {Work::Kind::kCopy, to_string(direction), report_.n_copies});
    access(on.actor, "its source", false, source, size_bytes);
    access(on.actor, "its destination", true, destination, size_bytes);
    pause(on, true);
    inner_->copy(on.inner.get(), destination, source, size_bytes, direction);
    ++report_.n_copies;
    if (direction == CopyDirection::kHostToDevice) report_.h2d_bytes += size_bytes;
    if (direction == CopyDirection::kDeviceToHost) report_.d2h_bytes += size_bytes;
  }

  std::size_t scratch_bytes(const Op& op) const override { return inner_->scratch_bytes(op); }
  std::string what_serves(const Op& op) const override { return inner_->what_serves(op); }

  void enqueue(StreamRef stream, const Op& op, Scratch scratch) override {
    check_op(op);
    const std::scoped_lock lock(mutex_);
    rethrow_if_failed();
    const TraceStream& on = stream_of(stream);
    begin(on, {Work::Kind::kOp, op_name(op), report_.n_ops});
    const auto tensor = [&](Access how, const char* name, const TensorView& view) {
      if (!view || view.elems() == 0) return;
      access(on.actor, name, how != Access::kRead, view.data, view.span_bytes());
    };
    std::visit([&tensor](const auto& args) { args.visit(tensor); }, op);
    // All of it: how much an op uses differs from backend to backend.
    if (scratch.data != nullptr && scratch.size_bytes > 0) {
      access(on.actor, "scratch", true, scratch.data, scratch.size_bytes);
    }
    pause(on, false);
    inner_->enqueue(on.inner.get(), op, scratch);
    ++report_.n_ops;
  }

  void host_access(Access how, const void* data, std::size_t size_bytes, const char* label) override {
    const std::scoped_lock lock(mutex_);
    rethrow_if_failed();
    if (size_bytes == 0) return;
    const char* const name = labels_.emplace(label).first->c_str();
    detector_.begin(caller(), {Work::Kind::kHost, name, 0});
    access(caller(), "host memory", how != Access::kRead, data, size_bytes);
  }

  void publish(const void* key) override {
    const std::scoped_lock lock(mutex_);
    published_[key].join(detector_.clock(caller()));
  }

  void observe(const void* key) override {
    const std::scoped_lock lock(mutex_);
    detector_.clock(caller()).join(published_[key]);
  }

  TraceReport report() {
    const std::scoped_lock lock(mutex_);
    TraceReport report = report_;
    for (std::size_t index = 0; index < waits_.size(); ++index) report.waits.push_back(describe_wait(index));
    return report;
  }

 protected:
  void* allocate(Buffer::Place place, std::size_t size_bytes) override {
    const bool device = place == Buffer::Place::kDevice;
    try {
      Buffer buffer = device ? inner_->allocate_device(size_bytes, "") : inner_->allocate_host(size_bytes, "");
      void* const data = buffer.data();
      const std::scoped_lock lock(mutex_);
      buffers_.emplace(data, std::move(buffer));
      detector_.add_memory(data, size_bytes);
      return data;
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kMemory) throw;
      return nullptr;  // the caller names the purpose
    }
  }

  void name_memory(const void* data, const std::string& purpose) override {
    const std::scoped_lock lock(mutex_);
    detector_.name_memory(data, purpose);
  }

  void free(Buffer::Place, void* data, std::size_t) noexcept override {
    const std::scoped_lock lock(mutex_);
    detector_.remove_memory(data);
    buffers_.erase(data);
  }

 private:
  struct Wait {
    Position waiter;
    Position recorder;
    bool adds_order;
  };

  // All below expect mutex_ to be held.

  void rethrow_if_failed() const {
    if (!failure_.empty()) throw Error(ErrorKind::kDevice, failure_);
  }

  /// The actor of the calling thread.
  std::size_t caller() {
    const auto [it, is_new] = threads_.try_emplace(this_thread_number(), 0);
    if (is_new) {
      const std::string name = fmt::format("host thread {}", threads_.size() - 1);
      it->second = detector_.add_actor(RaceDetector::ActorKind::kThread, name);
    }
    return it->second;
  }

  void follow_caller(const TraceStream& stream) { detector_.clock(stream.actor).join(detector_.clock(caller())); }

  void begin(const TraceStream& stream, const Work& work) {
    follow_caller(stream);
    detector_.begin(stream.actor, work);
  }

  void access(std::size_t actor, const char* tensor, bool writes, const void* data, std::size_t size_bytes) {
    const std::string fault = detector_.access(actor, tensor, writes, data, size_bytes);
    if (fault.empty()) return;
    failure_ = "trace:cpu: " + fault;
    rethrow_if_failed();
  }

  static const TraceEvent& recorded(EventRef event) {
    const TraceEvent& traced = event_of(event);
    FERRY_ASSERT(traced.recorded);
    return traced;
  }

  /// One more of the waits that count.
  void join(std::size_t waiter, const TraceEvent& event) {
    const auto index = static_cast<std::int64_t>(waits_.size());
    VectorClock& clock = detector_.clock(waiter);
    VectorClock joined = clock;
    const bool adds_order = joined.join(event.clock);
    waits_.push_back({{waiter, detector_.last_work(waiter)}, event.position, adds_order});
    if (index != options_.drop_wait) clock = std::move(joined);
  }

  TraceWait describe_wait(std::size_t index) const {
    const auto& [waiter, recorder, adds_order] = waits_[index];
    TraceWait result{.waiter = detector_.name(waiter.actor),
                     .recorder = detector_.name(recorder.actor),
                     .text = {},
                     .adds_order = adds_order,
                     .dropped = static_cast<std::int64_t>(index) == options_.drop_wait};
    result.text =
        fmt::format("wait {}: {}, after {}, waits for {}, after {}{}", index, result.waiter, to_string(waiter.after),
                    result.recorder, to_string(recorder.after), adds_order ? "" : " (adds no order)");
    return result;
  }

  /// What comes next on `stream` runs later, where the options say so.
  void pause(const TraceStream& stream, bool copy) {
    microseconds time = copy && options_.slow_copies ? microseconds(1000) : microseconds(0);
    if (options_.delay) {
      const CounterRng rng(*options_.delay, copy ? "pauses of copies" : "pauses of ops");
      const std::uint32_t draw = rng.bits(static_cast<std::uint64_t>(copy ? report_.n_copies : report_.n_ops));
      // A quarter of them does not pause at all, and one of 32 for long.
      if (draw % 4 != 0) time += draw % 32 == 1 ? microseconds(2000) : microseconds((draw >> 8) % 401);
    }
    if (time.count() > 0) stream.cpu->run([time] { std::this_thread::sleep_for(time); });
  }

  const TraceOptions options_;
  Capabilities capabilities_;
  const std::unique_ptr<Backend> inner_;
  std::mutex mutex_;  // guards all below
  RaceDetector detector_;
  std::map<std::uint64_t, std::size_t> threads_;  // actors, by this_thread_number()
  std::map<const void*, VectorClock> published_;  // by key
  std::set<std::string> labels_;                  // of host accesses; addresses stay
  std::vector<Wait> waits_;
  TraceReport report_;                     // but its waits
  std::string failure_;                    // empty = none
  std::map<const void*, Buffer> buffers_;  // by address
};

}  // namespace

std::unique_ptr<Backend> create_trace_backend(std::unique_ptr<Backend> cpu, const TraceOptions& options) {
  return std::make_unique<TraceBackend>(std::move(cpu), options);
}

TraceReport trace_report(Backend& backend) {
  auto* const traced = dynamic_cast<TraceBackend*>(&backend);
  FERRY_ASSERT(traced != nullptr);
  return traced->report();
}

}  // namespace ferry
