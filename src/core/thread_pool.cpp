// SPDX-License-Identifier: Apache-2.0
// Threads take indices from one shared counter; a loop ends when its last worker has left it.
#include "core/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <fstream>
#include <string>

#include "core/error.h"

namespace ferry {

struct ThreadPool::Loop {
  std::int64_t count = 0;
  const std::function<void(std::int64_t)>* fn = nullptr;
  std::atomic<std::int64_t> next{0};
  int n_inside = 0;  // guarded by the pool's mutex_
  std::mutex failure_mutex;
  std::exception_ptr failure;  // guarded by failure_mutex
  std::condition_variable left;
};

ThreadPool::ThreadPool(int n_threads) {
  FERRY_CHECK(n_threads >= 1, kConfig, "threads is {}: expected 1 or more", n_threads);
  for (int i = 1; i < n_threads; ++i) threads_.emplace_back([this](std::stop_token stop) { work(stop); });
}

ThreadPool::~ThreadPool() {
  for (auto& thread : threads_) thread.request_stop();
}

void ThreadPool::run(Loop& loop) {
  for (std::int64_t i; (i = loop.next.fetch_add(1, std::memory_order_relaxed)) < loop.count;) {
    try {
      (*loop.fn)(i);
    } catch (...) {
      const std::scoped_lock lock(loop.failure_mutex);
      if (!loop.failure) loop.failure = std::current_exception();
      loop.next.store(loop.count, std::memory_order_relaxed);
    }
  }
}

void ThreadPool::work(std::stop_token stop) {
  std::uint64_t seen = 0;
  std::unique_lock lock(mutex_);
  while (wake_.wait(lock, stop, [&] { return loop_ != nullptr && n_loops_ != seen; })) {
    seen = n_loops_;
    Loop& loop = *loop_;
    ++loop.n_inside;
    lock.unlock();
    run(loop);
    lock.lock();
    if (--loop.n_inside == 0) loop.left.notify_all();
  }
}

void ThreadPool::parallel_for(std::int64_t count, const std::function<void(std::int64_t)>& fn) {
  if (count <= 0) return;
  if (threads_.empty() || count == 1) {
    for (std::int64_t i = 0; i < count; ++i) fn(i);
    return;
  }
  Loop loop;
  loop.count = count;
  loop.fn = &fn;
  {
    std::unique_lock lock(mutex_);
    const std::uint64_t turn = n_asked_++;
    turn_.wait(lock, [&] { return n_ended_ == turn; });
    loop_ = &loop;
    ++n_loops_;
  }
  wake_.notify_all();
  run(loop);
  {
    std::unique_lock lock(mutex_);
    loop_ = nullptr;
    loop.left.wait(lock, [&] { return loop.n_inside == 0; });
    ++n_ended_;
  }
  turn_.notify_all();
  if (loop.failure) std::rethrow_exception(loop.failure);
}

namespace {

/// The cgroup v2 quota in whole threads, rounded up; 0 when there is none.
int cgroup_threads() {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (!(file >> quota >> period) || quota == "max" || period <= 0) return 0;
  return std::max(1, static_cast<int>((std::stod(quota) + period - 1) / period));
}

}  // namespace

int available_threads() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int count = 1;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) count = std::max(1, CPU_COUNT(&set));
  const int quota = cgroup_threads();
  return quota > 0 ? std::min(count, quota) : count;
}

}  // namespace ferry
