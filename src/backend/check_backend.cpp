// SPDX-License-Identifier: Apache-2.0
// Each op: its memory as it is before goes to the reference, both run it, what both wrote is compared on the host.
#include "backend/check_backend.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "backend/check_compare.h"
#include "core/error.h"

namespace ferry {
namespace {

constexpr std::size_t kAlignment = Buffer::kAlignment;

template <class Fn>
void for_each_tensor(const Op& op, Fn&& fn) {
  const auto present = [&fn](Access access, const char* name, const TensorView& view) {
    if (view && view.elems() > 0) fn(access, name, view);
  };
  std::visit([&present](const auto& args) { args.visit(present); }, op);
}

/// The memory of one op as distinct ranges, and their places in one block. Tensors whose spans overlap share a range,
/// so that they lie to each other in the block as they do in the subject's memory; alignment is kept too.
class OpMemory {
 public:
  explicit OpMemory(const Op& op) : op_(op) {
    for_each_tensor(op, [this](Access access, const char*, const TensorView& view) {
      const auto begin = reinterpret_cast<std::uintptr_t>(view.data);
      ranges_.push_back({begin, begin + view.span_bytes(), 0, access != Access::kRead});
    });
    merge();
    for (Range& range : ranges_) {
      range.offset = size_bytes_ + range.begin % kAlignment;
      size_bytes_ = (range.offset + range.size_bytes() + kAlignment - 1) / kAlignment * kAlignment;
    }
  }

  std::size_t size_bytes() const { return size_bytes_; }

  /// fn(address in the subject's memory, offset in the block, bytes)
  template <class Fn>
  void for_each_range(bool only_written, Fn&& fn) const {
    for (const Range& range : ranges_) {
      if (range.written || !only_written) fn(reinterpret_cast<void*>(range.begin), range.offset, range.size_bytes());
    }
  }

  TensorView relocated(TensorView view, void* block) const {
    const auto begin = reinterpret_cast<std::uintptr_t>(view.data);
    const auto range = std::ranges::find_if(ranges_, [&](const Range& each) { return begin < each.end; });
    view.data = static_cast<std::byte*>(block) + range->offset + (begin - range->begin);
    return view;
  }

  /// The op with its tensors in `block`.
  Op relocated_op(void* block) const {
    Op op = op_;
    for_each_tensor(op, [&](Access, const char*, const TensorView& view) {
      // visit() hands out members of `op`, which is not const.
      const_cast<TensorView&>(view) = relocated(view, block);
    });
    return op;
  }

 private:
  struct Range {
    std::uintptr_t begin, end;
    std::size_t offset;
    bool written;
    std::size_t size_bytes() const { return end - begin; }
  };

  void merge() {
    std::ranges::sort(ranges_, {}, &Range::begin);
    std::vector<Range> merged;
    for (const Range& range : ranges_) {
      if (merged.empty() || range.begin >= merged.back().end) {
        merged.push_back(range);
        continue;
      }
      merged.back().end = std::max(merged.back().end, range.end);
      merged.back().written = merged.back().written || range.written;
    }
    ranges_ = std::move(merged);
  }

  const Op& op_;
  std::vector<Range> ranges_;  // ascending, disjoint
  std::size_t size_bytes_ = 0;
};

/// `buffer` with room for `size_bytes`; contents are lost when it grows, by half more than is needed.
template <class Allocate>
void* room_in(Buffer& buffer, std::size_t size_bytes, Allocate&& allocate) {
  if (buffer.size_bytes() < size_bytes) {
    buffer = Buffer();
    buffer = allocate(size_bytes + size_bytes / 2);
  }
  return buffer.data();
}

void* host_room(Backend& backend, Buffer& buffer, std::size_t size_bytes) {
  return room_in(buffer, size_bytes,
                 [&](std::size_t bytes) { return backend.allocate_host(bytes, "the check of ops"); });
}

void* device_room(Backend& backend, Buffer& buffer, std::size_t size_bytes) {
  return room_in(buffer, size_bytes,
                 [&](std::size_t bytes) { return backend.allocate_device(bytes, "the check of ops"); });
}

/// Runs ops on memory of its own, whose contents come from the host and go there.
class Reference {
 public:
  explicit Reference(std::unique_ptr<Backend> backend)
      : backend_(std::move(backend)), stream_(backend_->create_stream("check")) {}

  Backend& backend() const { return *backend_; }

  /// Blocks. Replaces the op's block at `host`; returns it as it is after the op, until the next call.
  std::byte* run(const OpMemory& memory, const void* host) {
    void* const staging = host_room(*backend_, staging_, memory.size_bytes());
    std::memcpy(staging, host, memory.size_bytes());
    void* const block = device_room(*backend_, block_, memory.size_bytes());
    backend_->copy(stream_.get(), block, staging, memory.size_bytes(), CopyDirection::kHostToDevice);
    const Op op = memory.relocated_op(block);
    const std::size_t scratch_bytes = backend_->scratch_bytes(op);
    void* const scratch = device_room(*backend_, scratch_, scratch_bytes);
    backend_->enqueue(stream_.get(), op, scratch_bytes == 0 ? Scratch{} : Scratch{scratch, scratch_bytes});
    backend_->copy(stream_.get(), staging, block, memory.size_bytes(), CopyDirection::kDeviceToHost);
    backend_->sync(stream_.get());
    return static_cast<std::byte*>(staging);
  }

 private:
  std::unique_ptr<Backend> backend_;
  Buffer staging_;
  Buffer block_;
  Buffer scratch_;
  std::unique_ptr<Stream> stream_;
};

class CheckBackend final : public Backend {
 public:
  CheckBackend(CheckedBackend subject, CheckedBackend reference)
      : subject_name_(std::move(subject.name)),
        reference_name_(std::move(reference.name)),
        subject_(std::move(subject.backend)),
        reference_(std::move(reference.backend)) {
    capabilities_ = {
        "check",
        fmt::format("{} ({}), checked op by op by {} ({})", subject_name_, subject_->capabilities().description,
                    reference_name_, reference_.backend().capabilities().description),
        subject_->capabilities().is_device};
  }

  const Capabilities& capabilities() const override { return capabilities_; }

  std::unique_ptr<Stream> create_stream(const std::string& name) override { return subject().create_stream(name); }
  std::unique_ptr<Event> create_event() override { return subject().create_event(); }
  void record(EventRef event, StreamRef stream) override { subject().record(event, stream); }
  void wait(StreamRef stream, EventRef event) override { subject().wait(stream, event); }
  bool query(EventRef event) override { return subject().query(event); }
  void sync(EventRef event) override { subject().sync(event); }
  void sync(StreamRef stream) override { subject().sync(stream); }
  double elapsed_ms(EventRef begin, EventRef end) override { return subject_->elapsed_ms(begin, end); }
  void copy(StreamRef stream, void* destination, const void* source, std::size_t size_bytes,
            CopyDirection direction) override {
    subject().copy(stream, destination, source, size_bytes, direction);
  }
  std::size_t scratch_bytes(const Op& op) const override { return subject_->scratch_bytes(op); }
  std::string what_serves(const Op& op) const override { return subject_->what_serves(op); }

  void enqueue(StreamRef stream, const Op& op, Scratch scratch) override {
    check_op(op);
    // Streams take turns: the staging and the reference are shared. Work that `stream` waits for is enqueued already.
    const std::scoped_lock lock(mutex_);
    Backend& backend = subject();
    const OpMemory memory(op);
    auto* const host = static_cast<std::byte*>(host_room(backend, staging_, memory.size_bytes()));
    fetch(stream, memory, false, host);
    backend.enqueue(stream, op, scratch);
    std::byte* const want = reference_.run(memory, host);
    fetch(stream, memory, true, host);
    compare(op, memory, host, want);
    ++n_ops_;
  }

 protected:
  void* allocate(Buffer::Place place, std::size_t size_bytes) override {
    const bool device = place == Buffer::Place::kDevice;
    try {
      Buffer buffer = device ? subject_->allocate_device(size_bytes, "") : subject_->allocate_host(size_bytes, "");
      void* const data = buffer.data();
      const std::scoped_lock lock(buffers_mutex_);
      buffers_.emplace(data, std::move(buffer));
      return data;
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kMemory) throw;
      return nullptr;  // the caller names the purpose
    }
  }

  void free(Buffer::Place, void* data, std::size_t) noexcept override {
    const std::scoped_lock lock(buffers_mutex_);
    buffers_.erase(data);
  }

 private:
  /// The subject, unless an op disagreed before.
  Backend& subject() {
    if (failed_.load(std::memory_order_acquire)) throw Error(ErrorKind::kDevice, failure_);
    return *subject_;
  }

  /// Blocks until `stream` is done; then `host` holds the op's block.
  void fetch(StreamRef stream, const OpMemory& memory, bool only_written, std::byte* host) {
    memory.for_each_range(only_written, [&](const void* data, std::size_t offset, std::size_t size_bytes) {
      subject_->copy(stream, host + offset, data, size_bytes, CopyDirection::kDeviceToHost);
    });
    subject_->sync(stream);
  }

  void compare(const Op& op, const OpMemory& memory, std::byte* got, std::byte* want) {
    for_each_tensor(op, [&](Access access, const char* name, const TensorView& view) {
      if (access == Access::kRead) return;
      const CheckTolerance tolerance = check_tolerance(op, view.dtype);
      const auto difference = first_difference(memory.relocated(view, got), memory.relocated(view, want), tolerance);
      if (difference) fail(describe(op, name, view, tolerance, *difference));
    });
  }

  std::string describe(const Op& op, const char* name, const TensorView& view, const CheckTolerance& tolerance,
                       const CheckDifference& difference) const {
    const std::string allowed =
        tolerance.relative == 0 && tolerance.of_largest == 0
            ? "expected the same bits"
            : fmt::format("allowed difference {:.3g} ({:.3g} of want + {:.3g} of the tensor's largest, {:.3g})",
                          difference.allowed, tolerance.relative, tolerance.of_largest, difference.largest);
    return fmt::format(
        "check:{},{}: op {}, {}: {} {} at {}: got {:.9g} ({}), want {:.9g} ({}), {}; {} of {} elements differ: run on "
        "one of the two backends, and report this message",
        subject_name_, reference_name_, n_ops_, op_name(op), name, view.describe(), difference.index_text(),
        difference.got, subject_name_, difference.want, reference_name_, allowed, difference.n_differ, view.elems());
  }

  [[noreturn]] void fail(std::string message) {
    failure_ = std::move(message);
    failed_.store(true, std::memory_order_release);
    throw Error(ErrorKind::kDevice, failure_);
  }

  const std::string subject_name_;
  const std::string reference_name_;
  Capabilities capabilities_;
  const std::unique_ptr<Backend> subject_;
  std::mutex mutex_;
  Reference reference_;     // guarded by mutex_
  Buffer staging_;          // of the subject; guarded by mutex_
  std::int64_t n_ops_ = 0;  // that agreed; guarded by mutex_
  std::string failure_;     // written once under mutex_, before failed_ becomes true
  std::atomic<bool> failed_{false};
  std::mutex buffers_mutex_;
  std::map<void*, Buffer> buffers_;  // by address; guarded by buffers_mutex_
};

}  // namespace

std::unique_ptr<Backend> create_check_backend(CheckedBackend subject, CheckedBackend reference) {
  return std::make_unique<CheckBackend>(std::move(subject), std::move(reference));
}

}  // namespace ferry
