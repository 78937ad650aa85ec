// SPDX-License-Identifier: Apache-2.0
// A timeline as a file that Perfetto and Chrome's tracing page show.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "io/atomic_file.h"
#include "offload/timeline.h"

namespace ferry {

/// Steps in a trace: enough to see a steady state, and a file of a few MB for models of thousands of pieces.
inline constexpr std::int64_t kTraceSteps = 10;

/// JSON of the trace event format: one thread for each lane, a complete event ("X") for each span; times are in
/// microseconds, args.step counts from 1.
/// Source: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU (Trace Event Format)
std::string to_trace_json(const std::vector<TimelineSpan>& spans);

class TraceFile {
 public:
  /// What cannot be written is known before training. Throws Error{kIo}.
  explicit TraceFile(std::filesystem::path path) : path_(std::move(path)) { check_writable(path_); }

  /// The file appears, complete. Throws Error{kIo}.
  void write(const std::vector<TimelineSpan>& spans);

 private:
  std::filesystem::path path_;
};

}  // namespace ferry
