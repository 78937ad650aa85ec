// SPDX-License-Identifier: Apache-2.0
// Spans as trace events.
#include "train/trace_file.h"

#include <array>
#include <nlohmann/json.hpp>

namespace ferry {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<const char*, kLanes> kLaneNames{"h2d", "compute", "d2h", "optimizer", "launcher"};
constexpr int kProcess = 1;

int thread_of(Lane lane) { return static_cast<int>(lane) + 1; }

Json metadata(const char* what, int thread, Json args) {
  return {{"name", what}, {"ph", "M"}, {"pid", kProcess}, {"tid", thread}, {"args", std::move(args)}};
}

}  // namespace

std::string to_trace_json(const std::vector<TimelineSpan>& spans) {
  Json events = Json::array();
  events.push_back(metadata("process_name", 0, {{"name", "ferry"}}));
  for (std::size_t i = 0; i < kLanes; ++i) {
    const int thread = thread_of(static_cast<Lane>(i));
    events.push_back(metadata("thread_name", thread, {{"name", kLaneNames[i]}}));
    events.push_back(metadata("thread_sort_index", thread, {{"sort_index", thread}}));
  }
  for (const TimelineSpan& span : spans) {
    events.push_back({{"name", span.name},
                      {"ph", "X"},
                      {"pid", kProcess},
                      {"tid", thread_of(span.lane)},
                      {"ts", span.begin_us},
                      {"dur", span.duration_us},
                      {"args", {{"step", span.step + 1}}}});
  }
  return Json{{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}}.dump() + "\n";
}

void TraceFile::write(const std::vector<TimelineSpan>& spans) { write_file_atomically(path_, to_trace_json(spans)); }

}  // namespace ferry
