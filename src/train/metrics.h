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

#include "io/checksum.h"
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
  std::optional<double> expected_step_ms;  // by the plan
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

/// A checkpoint.
struct SaveMetrics {
  std::int64_t step = 0;   // steps taken before it
  std::string path;        // within the run's folder
  std::int64_t bytes = 0;  // of weights and optimizer state
  double seconds = 0;      // until these were on the disk
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
std::string to_json_line(const SaveMetrics& metrics);
std::string to_json_line(const EndMetrics& metrics);

/// Writes the whole lines of `from`, then `last_line`, as the file `to`. Blocks until it is on the disk.
/// Throws Error{kIo}.
FileDigest copy_metrics(const std::filesystem::path& from, const std::filesystem::path& to, std::string_view last_line);

/// Starts `path` anew, with the lines of `begun` where one is given, and appends lines, each flushed at once.
/// Throws Error{kIo} when it cannot be written.
class MetricsFile {
 public:
  explicit MetricsFile(const std::filesystem::path& path, const std::filesystem::path& begun = {});

  const std::filesystem::path& path() const { return path_; }

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
