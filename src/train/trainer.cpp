// SPDX-License-Identifier: Apache-2.0
// The step loop.
#include "train/trainer.h"

#include <fmt/core.h>

#include <cmath>
#include <utility>

#include "core/error.h"
#include "core/log.h"

namespace ferry {
namespace {

void check_finite(const char* what, double loss, std::int64_t step, double lr) {
  FERRY_CHECK(
      std::isfinite(loss), kDevice,
      "the {} of step {} is {}: training diverged at lr {:g} and nothing is saved; lower lr, raise warmup_steps, "
      "or look for damaged values in the data or init_from",
      what, step, loss, lr);
}

void check_any_target(std::int64_t n_tokens) {
  FERRY_CHECK(n_tokens > 0, kConfig, "val_data holds no valid target: its mask leaves nothing to evaluate");
}

}  // namespace

void check_evaluation_data(EvaluationBatches& data, std::int64_t eval_tokens) {
  data.rewind();
  Batch batch;
  std::int64_t n_tokens = 0;
  while ((eval_tokens == 0 || n_tokens < eval_tokens) && data.next(batch)) n_tokens += batch.n_valid_targets;
  check_any_target(n_tokens);
}

Trainer::Trainer(const TrainerParts& parts, const TrainerOptions& options)
    : parts_(parts),
      options_(options),
      steps_(options.schedule.steps),
      untraced_steps_(steps_ > 1 ? 1 : 0),  // the first step also pays for warming up
      device_bytes_(total_bytes(parts.engine.device_memory())),
      host_bytes_(total_bytes(parts.engine.host_memory())) {
  FERRY_CHECK(steps_ >= 1, kConfig, "a run of {} steps: expected 1 or more", steps_);
  FERRY_CHECK(options.log_every >= 1, kConfig, "log_every is {}, expected 1 or more", options.log_every);
}

TrainResult Trainer::run(const std::function<bool()>& stop) {
  attempt([&] { train(stop); });
  parts_.engine.finish();  // before the last loss is read, so that the last lap is as long as its steps
  read_losses(0);
  write_trace();
  const bool evaluated = last_eval_ && last_eval_->step == n_launched_;
  if (!error_ && !interrupted_ && parts_.val_data != nullptr && !evaluated) attempt([&] { evaluate(stop); });
  throughput_.pause();
  return result();
}

TrainResult Trainer::result() const {
  return {.interrupted = interrupted_,
          .error = error_,
          .steps = n_launched_,
          .tokens = tokens_,
          .skipped_steps = n_skipped_,
          .loss = history_.mean_of_last(LossHistory::kTail),
          .last_eval = last_eval_,
          .tokens_per_s = throughput_.total().tokens_per_s,
          .elapsed_s = elapsed_.seconds(),
          .train_curve = history_.points(),
          .val_curve = val_curve_};
}

void Trainer::train(const StopFn& stop) {
  while (!error_ && !interrupted_ && n_launched_ < steps_) {
    interrupted_ = stop();
    if (interrupted_) return;
    step();
    if (!error_ && evaluation_due()) evaluate(stop);
  }
}

void Trainer::attempt(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kIo) throw;  // the device or the optimizer failed: the weights may be torn
    if (!error_) error_ = std::current_exception();
  }
}

template <class Metrics>
void Trainer::write(const Metrics& metrics) {
  if (parts_.metrics == nullptr) return;
  attempt([&] {
    MetricsFile* const file = std::exchange(parts_.metrics, nullptr);
    file->write(metrics);
    parts_.metrics = file;
  });
}

const Batch* Trainer::peek_next() {
  try {
    parts_.train_data.peek(next_batch_);
    return &next_batch_;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kIo) throw;
    return nullptr;
  }
}

void Trainer::step() {
  parts_.train_data.next(batch_);
  const double lr = learning_rate(options_.schedule, n_launched_);
  start_trace_if_due();
  const std::int64_t number = parts_.engine.train_step(batch_, lr, peek_next());
  unread_.push_back({.number = number, .lr = lr, .n_tokens = batch_.n_valid_targets});
  ++n_launched_;
  if (n_launched_ > 1) {
    read_losses(1);
    if (n_read_ >= untraced_steps_ + kTraceSteps) write_trace();
    return;
  }
  parts_.engine.finish();
  read_losses(0);
  throughput_.start();
}

void Trainer::read_losses(std::size_t n_unread) {
  while (unread_.size() > n_unread) {
    const LaunchedStep launched = unread_.front();
    unread_.pop_front();
    report(launched);
  }
}

void Trainer::report(const LaunchedStep& launched) {
  const double loss = parts_.engine.loss(launched.number);
  ++n_read_;
  const StepStats stats = parts_.engine.stats(launched.number);
  if (stats.applied) {
    check_finite("loss", loss, n_read_, launched.lr);
    history_.add(n_read_, loss);
  } else {
    ++n_skipped_;
    log::warn("step {} is skipped, a gradient of it is not finite: its loss is {:g}", n_read_, loss);
  }
  tokens_ += launched.n_tokens;
  throughput_.count_step(launched.n_tokens);
  parts_.progress.update(progress_state(loss, launched.lr, stats));
  if (n_read_ == 1 || n_read_ % options_.log_every == 0 || n_read_ == steps_) log_step(launched, loss, stats);
}

void Trainer::log_step(const LaunchedStep& launched, double loss, const StepStats& stats) {
  const Throughput::Rate rate = throughput_.lap();
  ProgressState state = progress_state(loss, launched.lr, stats);
  state.tokens_per_s = rate.tokens_per_s;
  parts_.progress.log(state);
  const double n_sequences = static_cast<double>(parts_.train_data.sequences().n_sequences());
  const double n_seen = static_cast<double>(n_read_) * static_cast<double>(batch_.batch_size);
  write(TrainMetrics{.step = n_read_,
                     .epoch = n_seen / n_sequences,
                     .loss = loss,
                     .lr = launched.lr,
                     .tokens = tokens_,
                     .tokens_per_s = rate.tokens_per_s,
                     .step_ms = rate.step_ms,
                     .skipped_steps = n_skipped_,
                     .stats = stats,
                     .device_bytes = device_bytes_,
                     .host_bytes = host_bytes_,
                     .elapsed_s = elapsed_.seconds()});
}

bool Trainer::evaluation_due() const {
  return options_.eval_every > 0 && parts_.val_data != nullptr && n_launched_ % options_.eval_every == 0;
}

bool Trainer::add_losses(const StopFn& stop, double& loss_sum, std::int64_t& n_tokens) {
  parts_.val_data->rewind();
  Batch batch;
  while ((options_.eval_tokens == 0 || n_tokens < options_.eval_tokens) && parts_.val_data->next(batch)) {
    if (stop()) return false;
    if (batch.n_valid_targets == 0) continue;
    loss_sum += parts_.engine.evaluate(batch);
    n_tokens += batch.n_valid_targets;
  }
  return true;
}

void Trainer::evaluate(const StopFn& stop) {
  parts_.engine.finish();  // before the losses are read: the times of a step are known when it has ended
  read_losses(0);
  throughput_.pause();
  double loss_sum = 0;
  std::int64_t n_tokens = 0;
  interrupted_ = !add_losses(stop, loss_sum, n_tokens);
  throughput_.resume();
  if (interrupted_) return;
  check_any_target(n_tokens);
  const double val_loss = loss_sum / static_cast<double>(n_tokens);
  check_finite("validation loss", val_loss, n_launched_, learning_rate(options_.schedule, n_launched_ - 1));
  last_eval_ = EvalMetrics{.step = n_launched_,
                           .val_loss = val_loss,
                           .val_tokens = n_tokens,
                           .byte_vocabulary = options_.byte_vocabulary,
                           .elapsed_s = elapsed_.seconds()};
  val_curve_.push_back({n_launched_, val_loss});
  write(*last_eval_);
  parts_.progress.print(describe(*last_eval_));
}

void Trainer::start_trace_if_due() {
  if (parts_.trace != nullptr && n_launched_ == untraced_steps_) parts_.engine.start_trace(kTraceSteps);
}

void Trainer::write_trace() {
  if (parts_.trace == nullptr || n_launched_ <= untraced_steps_) return;
  TraceFile* const file = std::exchange(parts_.trace, nullptr);
  attempt([&] { file->write(parts_.engine.take_trace()); });
}

ProgressState Trainer::progress_state(double loss, double lr, const StepStats& stats) const {
  const Throughput::Rate rate = throughput_.total();
  ProgressState state{.step = n_read_,
                      .steps = steps_,
                      .loss = loss,
                      .grad_norm = std::nullopt,
                      .lr = lr,
                      .tokens_per_s = rate.tokens_per_s,
                      .device_bytes = device_bytes_,
                      .host_bytes = host_bytes_,
                      .eta_s = std::nullopt};
  if (std::isfinite(stats.grad_norm)) state.grad_norm = stats.grad_norm;
  if (rate.step_ms) state.eta_s = *rate.step_ms / 1000 * static_cast<double>(steps_ - n_read_);
  return state;
}

}  // namespace ferry
