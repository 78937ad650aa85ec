// SPDX-License-Identifier: Apache-2.0
// The worker loop of a stream. A wait blocks the worker, never the caller; it cannot deadlock, because the mark that it
// waits for was enqueued before it.
#include "backend/cpu/cpu_stream.h"

#include <pthread.h>

#include <utility>

#include "core/error.h"

namespace ferry::cpu {

void Mark::reach() {
  {
    const std::scoped_lock lock(mutex_);
    reached_ = true;
    time_ = Clock::now();
  }
  changed_.notify_all();
}

bool Mark::reached() const {
  const std::scoped_lock lock(mutex_);
  return reached_;
}

void Mark::block() const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return reached_; });
}

Mark::Clock::time_point Mark::time() const {
  const std::scoped_lock lock(mutex_);
  FERRY_ASSERT(reached_);
  return time_;
}

std::shared_ptr<Mark> CpuEvent::renew() {
  auto mark = std::make_shared<Mark>();
  const std::scoped_lock lock(mutex_);
  last_ = mark;
  return mark;
}

std::shared_ptr<Mark> CpuEvent::last() const {
  const std::scoped_lock lock(mutex_);
  const bool event_was_recorded = last_ != nullptr;
  FERRY_ASSERT(event_was_recorded);
  return last_;
}

void Failure::keep(std::exception_ptr failure) noexcept {
  const std::scoped_lock lock(mutex_);
  if (any()) return;
  first_ = std::move(failure);
  any_.store(true, std::memory_order_release);
}

void Failure::rethrow_if_any() const {
  if (any()) std::rethrow_exception(first_);
}

CpuStream::CpuStream(const std::string& name, Launch launch, Failure& failure) : launch_(launch), failure_(failure) {
  if (launch_ == Launch::kInline) return;
  worker_ = std::thread([this] { work(); });
  pthread_setname_np(worker_.native_handle(), name.substr(0, 15).c_str());  // Linux takes 15 characters
}

CpuStream::~CpuStream() {
  if (!worker_.joinable()) return;
  {
    const std::scoped_lock lock(mutex_);
    ending_ = true;
  }
  wake_.notify_one();
  worker_.join();
}

void CpuStream::run(std::function<void()> task) {
  if (launch_ == Launch::kWorker) return push({std::move(task), nullptr, nullptr});
  Item item{std::move(task), nullptr, nullptr};
  process(item);
  failure_.rethrow_if_any();
}

void CpuStream::record(std::shared_ptr<Mark> mark) { push({nullptr, std::move(mark), nullptr}); }

void CpuStream::wait(std::shared_ptr<const Mark> mark) { push({nullptr, nullptr, std::move(mark)}); }

void CpuStream::sync() {
  auto mark = std::make_shared<Mark>();
  record(mark);
  mark->block();
}

void CpuStream::push(Item item) {
  if (launch_ == Launch::kInline) return process(item);
  {
    const std::scoped_lock lock(mutex_);
    queue_.push_back(std::move(item));
  }
  wake_.notify_one();
}

void CpuStream::process(Item& item) noexcept {
  if (item.reach) return item.reach->reach();
  if (item.block) return item.block->block();
  if (failure_.any()) return;
  try {
    item.task();
  } catch (...) {
    failure_.keep(std::current_exception());
  }
}

void CpuStream::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return ending_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Item item = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    process(item);
    item = {};  // what a task holds is released outside the lock
    lock.lock();
  }
}

}  // namespace ferry::cpu
