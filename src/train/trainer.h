// SPDX-License-Identifier: Apache-2.0
// The step loop: batches in, learning rate, logging, evaluation, a clean stop.
#pragma once

#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <optional>
#include <vector>

#include "data/batch_loader.h"
#include "offload/engine.h"
#include "optim/schedule.h"
#include "train/checkpoint_writer.h"
#include "train/loss_plot.h"
#include "train/metrics.h"
#include "train/progress.h"
#include "train/stopwatch.h"
#include "train/trace_file.h"
#include "train/trainer_state.h"

namespace ferry {

struct TrainerOptions {
  ScheduleOptions schedule;  // its `steps` is the length of the run, >= 1
  std::int64_t log_every = 10;
  std::int64_t eval_every = 0;   // 0 = only at the end
  std::int64_t eval_tokens = 0;  // 0 = all of the validation data
  std::int64_t save_every = 0;   // 0 = only when the run ends early
  bool byte_vocabulary = false;
};

/// Where the loop reads from and reports to; all outlive the Trainer.
struct TrainerParts {
  Engine& engine;
  BatchLoader& train_data;
  EvaluationBatches* val_data = nullptr;  // may be absent
  Progress& progress;
  MetricsFile* metrics = nullptr;           // may be absent
  TraceFile* trace = nullptr;               // may be absent
  CheckpointWriter* checkpoints = nullptr;  // may be absent
};

/// Reads what an evaluation would read. Throws Error{kIo} for a token outside of the vocabulary, Error{kConfig} when no
/// target counts.
void check_evaluation_data(EvaluationBatches& data, std::int64_t eval_tokens);

struct TrainResult {
  bool interrupted = false;
  std::exception_ptr error;  // of a data file, the metrics or the trace file: it ended the run, the weights are whole
  std::int64_t steps = 0;    // taken, those before a resume included
  std::int64_t tokens = 0;   // valid targets trained
  std::int64_t skipped_steps = 0;  // of the steps: not finite
  double loss = 0;  // mean of the last LossHistory::kTail steps with a valid target, or of all when fewer; NaN if none
  std::optional<EvalMetrics> last_eval;
  std::optional<double> tokens_per_s;  // without the first step and evaluations
  std::optional<double> step_ms;       // the same: mean time of a step
  double elapsed_s = 0;
  std::vector<LossPoint> train_curve;
  std::vector<LossPoint> val_curve;
};

/// The loss of a step is read when the next one is launched, so that logging never stalls the device.
class Trainer {
 public:
  Trainer(const TrainerParts& parts, const TrainerOptions& options);

  /// Goes on where another Trainer stood; the engine does already. Before run(). Throws Error{kIo} for a position that
  /// the training data do not have.
  void resume(const TrainerState& state);

  /// Trains to the end or until `stop` (asked before each step and each batch of an evaluation) says true; then all
  /// updates are done. A run that reaches its end is evaluated; an evaluation that is stopped leaves no result.
  /// A checkpoint is saved every save_every steps and, when save_every > 0, at the end; also by a run that `stop` or
  /// Error{kIo} ends early.
  /// Error{kIo} ends the run and is in the result. Throws Error{kDevice} for a loss that is not finite, and what else
  /// the parts throw.
  TrainResult run(const std::function<bool()>& stop);
  /// So far; also after run() has thrown.
  TrainResult result() const;
  /// After a step whose loss has been read.
  TrainerState state() const;

 private:
  struct LaunchedStep {
    std::int64_t number = 0;  // as the engine counts
    double lr = 0;
    std::int64_t n_tokens = 0;
  };

  using StopFn = std::function<bool()>;

  void train(const StopFn& stop);
  /// Evaluation and checkpoint, where they are due.
  void between_steps(const StopFn& stop);
  /// Keeps an Error{kIo} of `work` in error_.
  void attempt(const std::function<void()>& work);
  void step();
  /// The batch after the current one; null where it cannot be read, which its own step reports.
  const Batch* peek_next();
  /// Reads losses until at most `n_unread` launched steps are left unread.
  void read_losses(std::size_t n_unread);
  void report(const LaunchedStep& launched);
  void add_loss(double loss, std::int64_t n_tokens);
  void log_step(const LaunchedStep& launched, double loss, const StepStats& stats);
  void evaluate(const StopFn& stop);
  bool evaluated() const { return last_eval_ && last_eval_->step == n_launched_; }
  bool owes_evaluation() const { return evaluation_due() && !evaluated(); }
  /// Sums losses over the validation data; false when stopped.
  bool add_losses(const StopFn& stop, double& loss_sum, std::int64_t& n_tokens);
  /// Writes nothing more once a write has failed.
  template <class Metrics>
  void write(const Metrics& metrics);
  double elapsed_s() const { return elapsed_before_s_ + elapsed_.seconds(); }
  ProgressState progress_state(double loss, double lr, const StepStats& stats) const;
  void start_trace_if_due();
  /// Blocks once, until the device is idle.
  void write_trace();
  bool evaluation_due() const;
  bool save_due() const { return options_.save_every > 0 && n_launched_ % options_.save_every == 0; }
  void save();
  /// At the end, unless it is saved already.
  void save_last();

  TrainerParts parts_;
  TrainerOptions options_;
  std::int64_t steps_;            // length of the run
  std::int64_t untraced_steps_;   // of this process, before those in the trace
  std::size_t device_bytes_ = 0;  // planned, constant
  std::size_t host_bytes_ = 0;

  bool interrupted_ = false;
  std::exception_ptr error_;  // the first
  Batch batch_;
  Batch next_batch_;
  std::deque<LaunchedStep> unread_;
  std::int64_t n_resumed_ = 0;  // steps before this process
  std::int64_t n_launched_ = 0;
  std::int64_t n_read_ = 0;
  std::int64_t n_saved_ = 0;  // steps that a checkpoint holds
  bool saving_failed_ = false;
  bool told_of_no_target_ = false;
  Throughput throughput_;
  double elapsed_before_s_ = 0;  // of the run, before this process
  Stopwatch elapsed_;
  LossHistory history_;
  std::int64_t tokens_ = 0;
  std::int64_t n_skipped_ = 0;
  std::optional<EvalMetrics> last_eval_;
  std::vector<LossPoint> val_curve_;
};

}  // namespace ferry
