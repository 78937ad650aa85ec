// SPDX-License-Identifier: Apache-2.0
// Copies between host and device that go on in the background, counted: a copy engine kept busy.
#pragma once

#include <cstddef>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <stop_token>
#include <thread>
#include <vector>

#include "backend/backend.h"

namespace ferry {

/// Copies piece after piece in one direction, on a thread and a stream of its own, until it is destroyed.
class CopyLoad {
 public:
  /// Both places are walked through by whole pieces, over and over. They outlive this object; nobody else uses them.
  struct Places {
    std::span<std::byte> host;  // of the backend's host memory
    std::span<std::byte> device;
  };
  CopyLoad(Backend& backend, CopyDirection direction, const Places& places, std::size_t piece_bytes);
  /// Blocks until the copies in its queue are done.
  ~CopyLoad();
  CopyLoad(const CopyLoad&) = delete;
  CopyLoad& operator=(const CopyLoad&) = delete;

  struct Progress {
    double bytes = 0;    // whole pieces that have arrived
    double seconds = 0;  // when the last of them did
  };
  /// Throws what a copy has thrown.
  Progress progress() const;
  std::size_t piece_bytes() const { return piece_bytes_; }

 private:
  void run(const std::stop_token& stop);
  void enqueue(std::size_t piece);

  Backend& backend_;
  const CopyDirection direction_;
  const Places places_;
  const std::size_t piece_bytes_;
  std::unique_ptr<Stream> stream_;
  mutable std::mutex mutex_;
  Progress progress_;           // guarded by mutex_
  std::exception_ptr failure_;  // guarded by mutex_
  std::jthread thread_;
};

/// Bytes per second of each, measured together for about `seconds` and a few pieces at least. Blocks.
std::vector<double> copy_rates(std::span<const std::unique_ptr<CopyLoad>> loads, double seconds);

}  // namespace ferry
