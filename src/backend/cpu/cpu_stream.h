// SPDX-License-Identifier: Apache-2.0
// Streams and events of the CPU backend: every stream is a thread of its own, so that a forgotten wait really fails.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "backend/backend.h"

namespace ferry::cpu {

/// Who runs a stream's work: a thread of the stream, or the caller before its call returns.
enum class Launch { kWorker, kInline };

/// One record of an event. Reached once; any thread may ask.
class Mark {
 public:
  using Clock = std::chrono::steady_clock;

  void reach();
  bool reached() const;
  void block() const;
  /// When it was reached. Asserts that it is.
  Clock::time_point time() const;

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool reached_ = false;    // guarded by mutex_
  Clock::time_point time_;  // guarded by mutex_
};

/// An event is its last record. A wait keeps the mark that was the last when it was enqueued, so a later record, on
/// whatever stream, does not change what it waits for, and the event may be destroyed before the work is done.
class CpuEvent final : public Event {
 public:
  /// A new mark, the last record from now on.
  std::shared_ptr<Mark> renew();
  /// Asserts that the event was recorded.
  std::shared_ptr<Mark> last() const;

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<Mark> last_;  // guarded by mutex_
};

/// The first failure of a backend's streams; it stays.
class Failure {
 public:
  void keep(std::exception_ptr failure) noexcept;
  bool any() const noexcept { return any_.load(std::memory_order_acquire); }
  void rethrow_if_any() const;

 private:
  std::mutex mutex_;
  std::exception_ptr first_;  // written once under mutex_, before any_ becomes true
  std::atomic<bool> any_{false};
};

/// A queue of work that runs in order. After a failure of any stream the queue drains: marks are still reached, so that
/// nobody waits for ever, but tasks no longer run. Members may be called from any thread.
class CpuStream final : public Stream {
 public:
  /// `failure` outlives the stream.
  CpuStream(const std::string& name, Launch launch, Failure& failure);
  /// Waits for all work.
  ~CpuStream() override;
  CpuStream(const CpuStream&) = delete;
  CpuStream& operator=(const CpuStream&) = delete;

  /// With Launch::kInline an exception of `task` is kept and thrown on.
  void run(std::function<void()> task);
  void record(std::shared_ptr<Mark> mark);
  void wait(std::shared_ptr<const Mark> mark);
  /// Blocks until all work enqueued so far is done.
  void sync();

 private:
  /// Exactly one member is set.
  struct Item {
    std::function<void()> task;
    std::shared_ptr<Mark> reach;
    std::shared_ptr<const Mark> block;
  };
  void push(Item item);
  void process(Item& item) noexcept;
  void work();

  const Launch launch_;
  Failure& failure_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Item> queue_;  // guarded by mutex_
  bool ending_ = false;     // guarded by mutex_
  std::thread worker_;
};

}  // namespace ferry::cpu
