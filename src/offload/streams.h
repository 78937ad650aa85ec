// SPDX-License-Identifier: Apache-2.0
// The three streams of the engine, the bytes that its copies have moved, and what it waited for.
#pragma once

#include <cstdint>
#include <memory>

#include "offload/step_waits.h"
#include "offload/timeline.h"

namespace ferry {

struct Streams {
  Streams(Backend& backend_in, bool poison_in, const ParameterTable& parameters, const PieceTable& pieces)
      : backend(backend_in),
        poisons(poison_in),
        compute(backend.create_stream("compute")),
        h2d(backend.create_stream("h2d")),
        d2h(backend.create_stream("d2h")),
        waits(backend, compute.get()),
        timeline(backend, parameters, pieces) {}

  /// Makes later work on `later` start after all work so far on `earlier`.
  void order(StreamRef earlier, StreamRef later, EventRef event) {
    backend.record(event, earlier);
    backend.wait(later, event);
  }
  /// Makes the compute stream wait; what that costs counts for `cause`.
  void wait_on_compute(EventRef event, WaitCause cause) {
    waits.begin();
    backend.wait(compute.get(), event);
    waits.end(cause);
  }
  /// What `enqueue` enqueues on the compute stream is a span of the timeline.
  template <class Enqueue>
  void on_compute(SpanName name, Enqueue&& enqueue) {
    const Timeline::StreamSpan span(timeline, Lane::kCompute, compute.get(), name);
    enqueue();
  }
  void to_device(void* device, const void* host, std::size_t size_bytes, SpanName name = {}) {
    const Timeline::StreamSpan span(timeline, Lane::kH2d, h2d.get(), name);
    backend.copy(h2d.get(), device, host, size_bytes, CopyDirection::kHostToDevice);
    h2d_bytes += static_cast<std::int64_t>(size_bytes);
  }
  void to_host(void* host, const void* device, std::size_t size_bytes, SpanName name = {}) {
    const Timeline::StreamSpan span(timeline, Lane::kD2h, d2h.get(), name);
    backend.copy(d2h.get(), host, device, size_bytes, CopyDirection::kDeviceToHost);
    d2h_bytes += static_cast<std::int64_t>(size_bytes);
  }
  /// What nobody needs any more becomes NaN, where that was asked for.
  void poison(StreamRef stream, const TensorView& x) {
    if (poisons) backend.enqueue(stream, Fill{.x = x, .byte = Fill::kNaNByte});
  }

  Backend& backend;
  const bool poisons;
  std::unique_ptr<Stream> compute;
  std::unique_ptr<Stream> h2d;
  std::unique_ptr<Stream> d2h;
  std::int64_t h2d_bytes = 0;
  std::int64_t d2h_bytes = 0;
  StepWaits waits;
  Timeline timeline;
};

}  // namespace ferry
