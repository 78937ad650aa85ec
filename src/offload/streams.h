// SPDX-License-Identifier: Apache-2.0
// The three streams of the engine and the bytes that its copies have moved.
#pragma once

#include <cstdint>
#include <memory>

#include "backend/backend.h"

namespace ferry {

struct Streams {
  explicit Streams(Backend& backend_in)
      : backend(backend_in),
        compute(backend.create_stream("compute")),
        h2d(backend.create_stream("h2d")),
        d2h(backend.create_stream("d2h")) {}

  /// Makes later work on `later` start after all work so far on `earlier`.
  void order(StreamRef earlier, StreamRef later, EventRef event) {
    backend.record(event, earlier);
    backend.wait(later, event);
  }
  void to_device(void* device, const void* host, std::size_t size_bytes) {
    backend.copy(h2d.get(), device, host, size_bytes, CopyDirection::kHostToDevice);
    h2d_bytes += static_cast<std::int64_t>(size_bytes);
  }
  void to_host(void* host, const void* device, std::size_t size_bytes) {
    backend.copy(d2h.get(), host, device, size_bytes, CopyDirection::kDeviceToHost);
    d2h_bytes += static_cast<std::int64_t>(size_bytes);
  }

  Backend& backend;
  std::unique_ptr<Stream> compute;
  std::unique_ptr<Stream> h2d;
  std::unique_ptr<Stream> d2h;
  std::int64_t h2d_bytes = 0;
  std::int64_t d2h_bytes = 0;
};

}  // namespace ferry
