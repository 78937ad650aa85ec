// SPDX-License-Identifier: Apache-2.0
// Host memory by purpose: planned first, then allocated once, in few large pieces.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "core/thread_pool.h"
#include "offload/memory_plan.h"

namespace ferry {

class HostMemory {
 public:
  using Id = int;

  /// 0 bytes take no memory and have no address.
  Id add(std::string purpose, std::size_t size_bytes);
  std::size_t total_bytes() const;
  /// By purpose, largest first; they add up to total_bytes().
  std::vector<MemoryLine> lines() const;

  /// Zeros; pages are first touched by all of the pool's threads. Throws Error{kMemory}.
  void allocate(Backend& backend, ThreadPool& pool);
  void* at(Id id) const { return parts_[static_cast<std::size_t>(id)].buffer.data(); }
  template <class T>
  T* as(Id id) const {
    return static_cast<T*>(at(id));
  }

 private:
  struct Part {
    std::string purpose;
    std::size_t size_bytes = 0;
    Buffer buffer;
  };
  std::vector<Part> parts_;
};

}  // namespace ferry
