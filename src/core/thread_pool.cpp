// SPDX-License-Identifier: Apache-2.0
// Threads take indices from one shared counter; a loop ends when its last worker has left it.
#include "core/thread_pool.h"

#include <sched.h>

#include <atomic>
#include <chrono>
#include <exception>

#include "core/error.h"
#include "core/log.h"

namespace ferry {
namespace {

// Pieces of AdamW follow each other within tens of microseconds while the optimizer is behind; longer gaps mean that it
// waits for gradients.
constexpr std::chrono::microseconds kLookOut{200};
constexpr int kPauses = 32;  // between two looks at the clock

/// Where the system refuses, the thread runs anywhere.
void bind_this_thread(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  if (sched_setaffinity(0, sizeof(set), &set) != 0) log::debug("a thread could not be bound to CPU {}", cpu);
}

}  // namespace

struct ThreadPool::Loop {
  std::int64_t count = 0;
  const std::function<void(std::int64_t)>* fn = nullptr;
  std::atomic<std::int64_t> next{0};
  std::atomic<int> n_inside{0};  // written under the pool's mutex_
  std::mutex failure_mutex;
  std::exception_ptr failure;  // guarded by failure_mutex
  std::condition_variable left;
};

ThreadPool::ThreadPool(const PoolPlacement& placement) : bound_(!placement.cpus.empty()) {
  const int n_threads = placement.n_threads;
  FERRY_CHECK(n_threads >= 1, kConfig, "threads is {}: expected 1 or more", n_threads);
  FERRY_ASSERT(!bound_ || static_cast<int>(placement.cpus.size()) == n_threads - 1);
  for (int i = 1; i < n_threads; ++i) {
    const int cpu = bound_ ? placement.cpus[static_cast<std::size_t>(i) - 1] : -1;
    threads_.emplace_back([this, cpu](std::stop_token stop) { work(stop, cpu); });
  }
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

template <class Ready>
void ThreadPool::look_out(Ready&& ready) const {
  if (!bound_) return;
  const auto end = std::chrono::steady_clock::now() + kLookOut;
  while (!ready() && std::chrono::steady_clock::now() < end) {
    for (int i = 0; i < kPauses; ++i) __builtin_ia32_pause();
  }
}

void ThreadPool::work(std::stop_token stop, int cpu) {
  if (cpu >= 0) bind_this_thread(cpu);
  std::uint64_t seen = 0;
  std::unique_lock lock(mutex_);
  const auto has_work = [&] { return loop_ != nullptr && n_loops_ != seen; };
  while (true) {
    lock.unlock();
    look_out([&] { return n_loops_ != seen || stop.stop_requested(); });
    lock.lock();
    if (!wake_.wait(lock, stop, has_work)) return;
    seen = n_loops_;
    Loop& loop = *loop_;
    ++loop.n_inside;
    lock.unlock();
    run(loop);
    lock.lock();
    if (--loop.n_inside == 0) loop.left.notify_all();
  }
}

std::uint64_t ThreadPool::n_asked() {
  const std::scoped_lock lock(mutex_);
  return n_asked_;
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
    lock.unlock();
    look_out([&] { return loop.n_inside == 0; });
    lock.lock();
    loop.left.wait(lock, [&] { return loop.n_inside == 0; });
    ++n_ended_;
  }
  turn_.notify_all();
  if (loop.failure) std::rethrow_exception(loop.failure);
}

}  // namespace ferry
