// SPDX-License-Identifier: Apache-2.0
// An op table whose one op calls into the test: its tensor's data is the function to call.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <utility>

#include "backend/cpu/cpu_backend.h"

namespace ferry {

/// A CPU backend that runs functions of the test as ops.
class FakeOps {
 public:
  explicit FakeOps(cpu::Launch launch = cpu::Launch::kWorker, bool with_scratch = false)
      : backend_(cpu::create_cpu_backend(with_scratch ? kWithScratch : kPlain, launch, {.threads = 1})) {}

  Backend& backend() { return *backend_; }

  /// Called by one thread at a time. `fn` lives as long as this object.
  void enqueue(StreamRef stream, std::function<void()> fn, Scratch scratch = {}) {
    functions_.push_back(std::move(fn));
    backend_->enqueue(stream, Fill{TensorView(&functions_.back(), DType::kF32, {1})}, scratch);
  }

  static constexpr std::size_t kScratchBytes = 100;

 private:
  static void call(const Op& op, Scratch, ThreadPool&) {
    (*static_cast<std::function<void()>*>(std::get<Fill>(op).x.data))();
  }
  static constexpr cpu::OpTable kPlain{SimdLevel::kScalar, call, [](const Op&) { return std::size_t{0}; }};
  static constexpr cpu::OpTable kWithScratch{SimdLevel::kScalar, call, [](const Op&) { return kScratchBytes; }};

  std::list<std::function<void()>> functions_;  // addresses stay
  std::unique_ptr<Backend> backend_;
};

}  // namespace ferry
