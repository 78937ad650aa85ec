// SPDX-License-Identifier: Apache-2.0
// Workers take the next run; the caller watches their start times.
#include "offload/parallel_runs.h"

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <mutex>
#include <thread>

namespace ferry::test {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kLongest = std::chrono::minutes(2);

class Pool {
 public:
  explicit Pool(const std::vector<NamedRun>& runs) : runs_(runs), faults_(runs.size()) {}

  void work() {
    std::unique_lock lock(mutex_);
    while (next_ < runs_.size()) {
      const std::size_t index = next_++;
      running_[index] = Clock::now();
      lock.unlock();
      std::string fault = fault_of(runs_[index]);
      lock.lock();
      faults_[index] = std::move(fault);
      running_.erase(index);
      ++n_done_;
      changed_.notify_all();
    }
  }

  void watch() {
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, std::chrono::seconds(1), [this] { return n_done_ == runs_.size(); })) {
      for (const auto& [index, begin] : running_) {
        if (Clock::now() - begin < kLongest) continue;
        std::fprintf(stderr, "this run hangs: %s\n", runs_[index].name.c_str());
        std::abort();
      }
    }
  }

  std::vector<std::string> faults() const {
    std::vector<std::string> result;
    for (std::size_t i = 0; i < runs_.size(); ++i) {
      if (!faults_[i].empty()) result.push_back(runs_[i].name + ": " + faults_[i]);
    }
    return result;
  }

 private:
  static std::string fault_of(const NamedRun& run) {
    try {
      return run.run();
    } catch (const std::exception& failure) {
      return std::string("it throws ") + failure.what();
    }
  }

  const std::vector<NamedRun>& runs_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> faults_;                   // guarded by mutex_
  std::map<std::size_t, Clock::time_point> running_;  // guarded by mutex_; begin, by run
  std::size_t next_ = 0;                              // guarded by mutex_
  std::size_t n_done_ = 0;                            // guarded by mutex_
};

}  // namespace

std::vector<std::string> run_all(const std::vector<NamedRun>& runs, int n_threads) {
  Pool pool(runs);
  std::vector<std::jthread> workers;
  for (int i = 0; i < n_threads; ++i) workers.emplace_back([&pool] { pool.work(); });
  pool.watch();
  workers.clear();
  return pool.faults();
}

}  // namespace ferry::test
