// SPDX-License-Identifier: Apache-2.0
// Events of streams and times of threads on one axis.
#include "offload/timeline.h"

#include <fmt/core.h>

#include <algorithm>
#include <exception>
#include <tuple>

#include "core/error.h"
#include "core/log.h"

namespace ferry {

std::string describe_segment(const Segment& segment) {
  switch (segment.kind) {
    case Segment::Kind::kEmbedding: return fmt::format("embedding chunk {}", segment.index);
    case Segment::Kind::kLayer: return fmt::format("layer {}", segment.index);
    case Segment::Kind::kFinalNorm: return "final norm";
    case Segment::Kind::kHead: break;
  }
  return fmt::format("head chunk {}", segment.index);
}

Timeline::Timeline(Backend& backend, const ParameterTable& parameters, const PieceTable& pieces)
    : backend_(backend), parameters_(parameters), pieces_(pieces), reference_(backend.create_event()) {}

/// The reference is reached between two readings of the host's clock; of several attempts the closest two are taken.
void Timeline::start(std::int64_t first, std::int64_t n_steps, StreamRef stream) {
  constexpr int kAttempts = 32;
  auto closest = Clock::duration::max();
  std::unique_ptr<Event> attempt = backend_.create_event();
  const std::scoped_lock lock(mutex_);
  backend_.sync(stream);
  for (int i = 0; i < kAttempts; ++i) {
    const auto before = Clock::now();
    backend_.record(attempt.get(), stream);
    backend_.sync(attempt.get());
    const auto distance = Clock::now() - before;
    if (distance >= closest) continue;
    closest = distance;
    started_ = before + distance / 2;
    std::swap(attempt, reference_);
  }
  first_ = first;
  end_ = first + n_steps;
  spans_.clear();
  pending_.clear();
}

void Timeline::begin_step(std::int64_t step) {
  const std::scoped_lock lock(mutex_);
  step_ = step;
  active_ = step >= first_ && step < end_;
  launch_began_ = Clock::now();
}

void Timeline::end_step() {
  if (active_) note_host(Lane::kLauncher, {"launch step"}, step_, launch_began_);
  active_ = false;
}

Timeline::StreamSpan::StreamSpan(Timeline& timeline, Lane lane, StreamRef stream, SpanName name) : stream_(stream) {
  if (!timeline.active_) return;
  Pending pending;
  pending.span.lane = lane;
  pending.span.name = timeline.text_of(name);
  pending.span.step = timeline.step_;
  pending.begin = timeline.backend_.create_event();
  pending.end = timeline.backend_.create_event();
  timeline.backend_.record(pending.begin.get(), stream);
  index_ = timeline.pending_.size();
  timeline.pending_.push_back(std::move(pending));
  timeline_ = &timeline;
}

Timeline::StreamSpan::~StreamSpan() {
  if (timeline_ == nullptr) return;
  try {
    timeline_->backend_.record(timeline_->pending_[index_].end.get(), stream_);
  } catch (const std::exception& failure) {
    // The backend has failed: its next call throws the same to the caller.
    log::debug("ending a span: {}", failure.what());
  }
}

void Timeline::note_wait(SpanName name, Clock::time_point begin) {
  if (active_) note_host(Lane::kLauncher, name, step_, begin);
}

void Timeline::note_host(Lane lane, SpanName name, std::int64_t step, Clock::time_point begin) {
  const auto end = Clock::now();
  const std::scoped_lock lock(mutex_);
  if (step < first_ || step >= end_) return;
  const double begin_us = us_since_start(begin);
  spans_.push_back({.lane = lane,
                    .name = text_of(name),
                    .step = step,
                    .begin_us = begin_us,
                    .duration_us = us_since_start(end) - begin_us});
}

std::vector<TimelineSpan> Timeline::take() {
  const std::scoped_lock lock(mutex_);
  std::vector<TimelineSpan> spans = std::move(spans_);
  for (Pending& pending : pending_) {
    pending.span.begin_us = backend_.elapsed_ms(reference_.get(), pending.begin.get()) * 1e3;
    pending.span.duration_us = backend_.elapsed_ms(pending.begin.get(), pending.end.get()) * 1e3;
    spans.push_back(std::move(pending.span));
  }
  spans_.clear();
  pending_.clear();
  end_ = first_;
  std::ranges::stable_sort(
      spans, {}, [](const TimelineSpan& span) { return std::tuple(span.lane, span.begin_us, -span.duration_us); });
  return spans;
}

std::string Timeline::text_of(const SpanName& name) const {
  const int segment = name.piece >= 0 ? pieces_.piece(name.piece).segment : name.segment;
  if (segment < 0) return name.what;
  std::string text = fmt::format("{} {}", name.what, describe_segment(parameters_.segment(segment)));
  const int first = pieces_.first_of(segment);
  const bool several = pieces_.first_of(segment + 1) - first > 1;
  return name.piece >= 0 && several ? fmt::format("{}, piece {}", text, name.piece - first) : text;
}

double Timeline::us_since_start(Clock::time_point time) const {
  return std::chrono::duration<double, std::micro>(time - started_).count();
}

}  // namespace ferry
