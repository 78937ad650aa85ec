// SPDX-License-Identifier: Apache-2.0
// Loops of the thread pool: coverage, concurrency, exceptions, several callers.
#include "core/thread_pool.h"

#include <sched.h>

#include <atomic>
#include <chrono>
#include <latch>
#include <stdexcept>
#include <thread>
#include <vector>

#include "catch.h"
#include "thrown.h"

using namespace ferry;

TEST_CASE("parallel_for calls every index once, for any number of threads and indices") {
  for (const int n_threads : {1, 2, 5}) {
    ThreadPool pool(n_threads);
    CHECK(pool.size() == n_threads);
    for (const std::int64_t count : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> n_calls(static_cast<std::size_t>(count));
      pool.parallel_for(count, [&](std::int64_t i) { ++n_calls[static_cast<std::size_t>(i)]; });
      bool once = true;
      for (const auto& n : n_calls) once = once && n == 1;
      CHECK(once);
    }
  }
}

TEST_CASE("parallel_for runs on several threads at once") {
  ThreadPool pool(3);
  std::latch all_inside(3);  // a pool with fewer threads would never pass it
  pool.parallel_for(3, [&](std::int64_t) { all_inside.arrive_and_wait(); });
  CHECK(all_inside.try_wait());
}

TEST_CASE("what a loop writes is seen after it") {
  ThreadPool pool(4);
  std::vector<std::int64_t> values(500);
  for (std::int64_t round = 0; round < 200; ++round) {
    pool.parallel_for(500, [&](std::int64_t i) { values[static_cast<std::size_t>(i)] += i + round; });
  }
  bool right = true;
  for (std::int64_t i = 0; i < 500; ++i) right = right && values[static_cast<std::size_t>(i)] == 200 * i + 19900;
  CHECK(right);
}

TEST_CASE("an exception of one index reaches the caller, and the pool works on") {
  for (const int n_threads : {1, 3}) {
    ThreadPool pool(n_threads);
    std::string message;
    try {
      pool.parallel_for(100, [](std::int64_t i) {
        if (i == 42) throw std::runtime_error("index 42");
      });
    } catch (const std::runtime_error& error) {
      message = error.what();
    }
    CHECK(message == "index 42");
    std::atomic<int> n_calls{0};
    pool.parallel_for(10, [&](std::int64_t) { ++n_calls; });
    CHECK(n_calls == 10);
  }
}

TEST_CASE("loops from several threads take turns") {
  ThreadPool pool(3);
  std::vector<std::int64_t> sums(4);
  {
    std::vector<std::jthread> callers;
    for (std::int64_t& sum : sums) {
      callers.emplace_back([&pool, &sum] {
        for (int round = 0; round < 100; ++round) {
          std::atomic<std::int64_t> total{0};
          pool.parallel_for(20, [&](std::int64_t i) { total += i; });
          sum += total;
        }
      });
    }
  }
  for (const std::int64_t sum : sums) CHECK(sum == 19000);
}

TEST_CASE("loops run in the order in which they were asked for") {
  ThreadPool pool(2);
  const auto wait_until_asked = [&pool](std::uint64_t n_loops) {
    while (pool.n_asked() < n_loops) std::this_thread::yield();
  };
  std::atomic<bool> busy{true};
  std::vector<int> order;  // written by one loop at a time
  {
    std::vector<std::jthread> callers;
    callers.emplace_back([&] {
      pool.parallel_for(2, [&](std::int64_t) {
        while (busy) std::this_thread::yield();
      });
      // Asks again and again, and must not overtake those who have waited since.
      for (int i = 0; i < 3; ++i)
        pool.parallel_for(2, [&](std::int64_t index) {
          if (index == 0) order.push_back(0);
        });
    });
    wait_until_asked(1);
    for (int caller = 1; caller <= 3; ++caller) {
      callers.emplace_back([&pool, &order, caller] {
        pool.parallel_for(2, [&](std::int64_t index) {
          if (index == 0) order.push_back(caller);
        });
      });
      wait_until_asked(1 + static_cast<std::uint64_t>(caller));
    }
    busy = false;
  }
  CHECK(order == std::vector<int>{1, 2, 3, 0, 0, 0});
}

TEST_CASE("a pool without threads is refused") {
  CHECK(thrown([] { ThreadPool(0); }) == "config: threads is 0: expected 1 or more");
}

TEST_CASE("threads that are bound run on their CPUs, and loops long after one another find them") {
  const int cpu = allowed_cpus().back();
  ThreadPool pool(PoolPlacement{.n_threads = 3, .cpus = {cpu, cpu}});
  for (const int pause_ms : {0, 0, 5}) {
    std::this_thread::sleep_for(std::chrono::milliseconds(pause_ms));
    std::latch all_inside(3);
    std::atomic<int> n_bound = 0;
    pool.parallel_for(3, [&](std::int64_t) {
      all_inside.arrive_and_wait();
      cpu_set_t set;
      sched_getaffinity(0, sizeof(set), &set);
      if (CPU_COUNT(&set) == 1 && CPU_ISSET(cpu, &set)) ++n_bound;
    });
    CHECK(n_bound >= 2);
  }
}
