// SPDX-License-Identifier: Apache-2.0
// The metrics file: JSON Lines with one schema, described in docs/metrics.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>

#include "offload/engine.h"

namespace ferry {

/// First line of a run: what was started.
struct RunMetrics {
  std::string ferry_version;
  std::string backend;  // its description
  std::string dtype;
  std::int64_t parameters = 0;
  std::int64_t steps = 0;
  std::int64_t batch_size = 0;
  std::int64_t seq_len = 0;
  std::int64_t train_tokens = 0;
  std::int64_t val_tokens = 0;
};

/// One training step.
struct TrainMetrics {
  std::int64_t step = 0;  // the first is 1
  double epoch = 0;       // passes over the training data so far, this step included
  double loss = 0;        // nats per token
  double lr = 0;
  std::int64_t tokens = 0;             // trained so far
  std::optional<double> tokens_per_s;  // since the line before; the first step is never counted
  std::optional<double> step_ms;       // mean per step since the line before
  std::int64_t skipped_steps = 0;      // so far: a gradient was not finite, and clipping was on
  StepStats stats;
  std::size_t device_bytes = 0;
  std::size_t host_bytes = 0;
  double elapsed_s = 0;
};

/// One pass over validation data.
struct EvalMetrics {
  std::int64_t step = 0;  // steps taken before it
  double val_loss = 0;    // nats per token
  std::int64_t val_tokens = 0;
  bool byte_vocabulary = false;
  double elapsed_s = 0;
};

/// Last line of a run.
struct EndMetrics {
  std::string status;  // "finished", "interrupted", "failed"
  std::int64_t step = 0;
  std::int64_t tokens = 0;
  std::int64_t skipped_steps = 0;
  std::optional<double> loss;
  std::optional<double> val_loss;
  std::optional<double> tokens_per_s;  // over the whole run, without its first step and without evaluation
  double elapsed_s = 0;
};

double perplexity(double loss);
/// Nats per token to bits per byte, where each token is one byte.
double bits_per_byte(double loss);

/// "step 100: validation loss 1.8312, perplexity 6.24, 2.642 bits per byte"
std::string describe(const EvalMetrics& metrics);

/// One JSON object on one line, newline included. Numbers that are not finite become null.
std::string to_json_line(const RunMetrics& metrics);
std::string to_json_line(const TrainMetrics& metrics);
std::string to_json_line(const EvalMetrics& metrics);
std::string to_json_line(const EndMetrics& metrics);

/// Starts `path` anew and appends lines, each flushed at once. Throws Error{kIo} when it cannot be written.
class MetricsFile {
 public:
  explicit MetricsFile(const std::filesystem::path& path);

  template <class Metrics>
  void write(const Metrics& metrics) {
    write_line(to_json_line(metrics));
  }

 private:
  void write_line(std::string_view line);

  std::filesystem::path path_;
  std::ofstream file_;
};

}  // namespace ferry
