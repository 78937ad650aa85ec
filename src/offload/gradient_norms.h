// SPDX-License-Identifier: Apache-2.0
// Sums of squares of gradients, taken on the device as each segment's gradient is done, and sent to the optimizer.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "model/llama.h"
#include "offload/optimizer_queue.h"
#include "offload/streams.h"

namespace ferry {

/// Trained parameters of a segment that lie next to each other: what one op sums.
struct NormRun {
  std::int64_t offset = 0;  // in the flat space
  std::int64_t elems = 0;
};
std::vector<NormRun> norm_runs(const ParameterTable& parameters, const Segment& segment);

/// One f32 per run, in fixed order; two steps' results are kept on the host.
class GradientNorms {
 public:
  /// Of how many f32 `device` consists; `host` has twice as many.
  static std::int64_t count(const ParameterTable& parameters);

  GradientNorms(Streams& streams, const ParameterTable& parameters, OptimizerQueue& queue, float* device, float* host);

  void begin_step(std::int64_t step);
  /// Enqueues the sums of the segment's gradient on the context's stream; the step's first ones wait until the step
  /// before has sent all of its own. `skip`: (V) i32, rows of the embedding table that do not count yet; absent: all
  /// count.
  void take(const OpContext& context, int segment, const TensorView& gradient, const TensorView& skip);
  /// Copies them home on the d2h stream, which has been ordered behind the sums, and submits them.
  void send(int segment);

 private:
  struct Part {
    std::vector<NormRun> runs;
    std::int64_t first = 0;  // of its results
    std::unique_ptr<Event> arrived;
  };

  Streams& streams_;
  const ParameterTable& parameters_;
  OptimizerQueue& queue_;
  float* device_ = nullptr;
  float* host_ = nullptr;
  std::vector<Part> parts_;  // by segment
  std::int64_t count_ = 0;
  std::int64_t step_ = 0;
  EventRef last_sent_ = nullptr;    // of this step
  EventRef sent_before_ = nullptr;  // of the step before; null once it has been waited for
};

}  // namespace ferry
