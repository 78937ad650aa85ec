// SPDX-License-Identifier: Apache-2.0
// A fixed set of threads that share out the indices of one loop at a time.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "core/cpu_topology.h"

namespace ferry {

/// The calling thread works too, so a pool of n threads starts n - 1. Loops from several threads take turns, first
/// come, first served: a thread that runs one loop after another keeps nobody waiting for more than one of them.
/// Results may depend on how the caller cuts its work, never on the number of threads: cut by index, not by thread.
class ThreadPool {
 public:
  /// `n_threads` >= 1.
  explicit ThreadPool(int n_threads) : ThreadPool(PoolPlacement{.n_threads = n_threads, .cpus = {}}) {}
  /// Threads with a CPU each of their own look out for the next loop for a moment before they sleep: waking them for
  /// each of many short loops would cost more.
  explicit ThreadPool(const PoolPlacement& placement);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(threads_.size()) + 1; }

  /// Calls fn(i) once for each i in [0, count), in any order, on any thread; returns when all are done.
  /// Rethrows the first exception. Must not be called from inside fn.
  void parallel_for(std::int64_t count, const std::function<void(std::int64_t)>& fn);
  /// Loops asked for so far, those that wait for their turn included; loops of one index take none.
  std::uint64_t n_asked();

 private:
  struct Loop;
  void work(std::stop_token stop, int cpu);
  static void run(Loop& loop);
  /// Returns early unless the threads are bound.
  template <class Ready>
  void look_out(Ready&& ready) const;

  const bool bound_;

  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::condition_variable turn_;
  Loop* loop_ = nullptr;                    // guarded by mutex_
  std::atomic<std::uint64_t> n_loops_ = 0;  // written under mutex_
  std::uint64_t n_asked_ = 0;               // guarded by mutex_
  std::uint64_t n_ended_ = 0;               // guarded by mutex_: loops that are over
  std::vector<std::jthread> threads_;
};

}  // namespace ferry
