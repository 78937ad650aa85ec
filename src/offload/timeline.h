// SPDX-License-Identifier: Apache-2.0
// What every stream and thread of the engine did in a few steps: the material of `--trace`.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "offload/pieces.h"

namespace ferry {

/// Lanes of a timeline: three streams and two threads of the host.
enum class Lane { kH2d, kCompute, kD2h, kOptimizer, kLauncher };
inline constexpr std::size_t kLanes = 5;

/// Something that lasted. Spans of a lane do not overlap, but the launcher's waits lie within its steps.
struct TimelineSpan {
  Lane lane = Lane::kCompute;
  std::string name;       // "forward layer 3"
  std::int64_t step = 0;  // that it belongs to; the first is 0
  double begin_us = 0;    // since the timeline was started
  double duration_us = 0;
};

/// "weights" of segment 5, piece 17 of the flat space: a text only when it is needed.
struct SpanName {
  const char* what = "copy";
  int segment = -1;  // none
  int piece = -1;    // none
};

/// Off until start(); then costs two events for each span of a stream. The launching thread makes all calls but
/// note_host, which any thread may.
class Timeline {
 public:
  using Clock = std::chrono::steady_clock;

  Timeline(Backend& backend, const ParameterTable& parameters, const PieceTable& pieces);

  /// Notes the steps [first, first + n_steps). Blocks until `stream` is idle: its events are set against the clock of
  /// the host. Forgets what was noted before.
  void start(std::int64_t first, std::int64_t n_steps, StreamRef stream);
  void begin_step(std::int64_t step);
  void end_step();
  /// Whether the step that is being launched is noted.
  bool active() const { return active_; }

  /// Lasts from the end of the work on `stream` before it to the end of what is enqueued while it lives.
  class StreamSpan {
   public:
    StreamSpan(Timeline& timeline, Lane lane, StreamRef stream, SpanName name);
    ~StreamSpan();
    StreamSpan(const StreamSpan&) = delete;
    StreamSpan& operator=(const StreamSpan&) = delete;

   private:
    Timeline* timeline_ = nullptr;  // null: nothing is noted
    std::size_t index_ = 0;         // of its Pending
    StreamRef stream_;
  };

  /// A wait of the launching thread that has just ended.
  void note_wait(SpanName name, Clock::time_point begin);
  /// Something that has just ended on any thread; left out unless `step` is noted.
  void note_host(Lane lane, SpanName name, std::int64_t step, Clock::time_point begin);

  /// By lane, then by time, and forgets them. The streams have ended the noted steps.
  std::vector<TimelineSpan> take();

 private:
  struct Pending {
    TimelineSpan span;
    std::unique_ptr<Event> begin;
    std::unique_ptr<Event> end;
  };

  std::string text_of(const SpanName& name) const;
  double us_since_start(Clock::time_point time) const;

  Backend& backend_;
  const ParameterTable& parameters_;
  const PieceTable& pieces_;
  std::unique_ptr<Event> reference_;  // reached when start() returned
  std::vector<Pending> pending_;      // spans of streams
  std::int64_t step_ = 0;             // that is being launched
  bool active_ = false;
  Clock::time_point launch_began_;

  std::mutex mutex_;        // guards the rest
  std::int64_t first_ = 0;  // steps that are noted: first_ to end_ - 1
  std::int64_t end_ = 0;
  Clock::time_point started_;        // when reference_ was reached
  std::vector<TimelineSpan> spans_;  // of the host's threads
};

/// "layer 3", "final norm", "head chunk 2", "embedding chunk 0"
std::string describe_segment(const Segment& segment);

}  // namespace ferry
