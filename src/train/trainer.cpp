// SPDX-License-Identifier: Apache-2.0
// The step loop.
#include "train/trainer.h"

#include <fmt/core.h>

#include <cmath>
#include <utility>

#include "core/error.h"
#include "core/human_units.h"
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

}  // namespace

void check_evaluation_data(EvaluationBatches& data, std::int64_t eval_tokens) {
  data.sequences().check_any_target("val_data");
  data.rewind();
  Batch batch;
  std::int64_t n_tokens = 0;
  while ((eval_tokens == 0 || n_tokens < eval_tokens) && data.next(batch)) n_tokens += batch.n_valid_targets;
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

void Trainer::resume(const TrainerState& state) {
  FERRY_ASSERT(n_launched_ == 0);
  FERRY_CHECK(state.step <= steps_, kConfig, "the checkpoint has {} steps, the run is to have {}: raise steps",
              state.step, steps_);
  parts_.train_data.set_cursor(state.cursor);
  n_resumed_ = n_launched_ = n_read_ = n_saved_ = state.step;
  untraced_steps_ = steps_ - n_resumed_ > 1 ? 1 : 0;
  tokens_ = state.tokens;
  n_skipped_ = state.skipped_steps;
  elapsed_before_s_ = state.elapsed_s;
  history_ = LossHistory(state.losses);
  val_curve_ = state.val_curve;
  if (!state.last_eval) return;
  last_eval_ = EvalMetrics{.step = state.last_eval->step,
                           .val_loss = state.last_eval->val_loss,
                           .val_tokens = state.last_eval->val_tokens,
                           .byte_vocabulary = options_.byte_vocabulary,
                           .elapsed_s = state.last_eval->elapsed_s};
}

TrainerState Trainer::state() const {
  FERRY_ASSERT(unread_.empty());
  TrainerState state{.step = n_launched_,
                     .tokens = tokens_,
                     .skipped_steps = n_skipped_,
                     .cursor = parts_.train_data.cursor(),
                     .elapsed_s = elapsed_s(),
                     .losses = history_.state(),
                     .val_curve = val_curve_,
                     .last_eval = {}};
  if (last_eval_) {
    state.last_eval = {.step = last_eval_->step,
                       .val_loss = last_eval_->val_loss,
                       .val_tokens = last_eval_->val_tokens,
                       .elapsed_s = last_eval_->elapsed_s};
  }
  return state;
}

TrainResult Trainer::run(const std::function<bool()>& stop) {
  attempt([&] { train(stop); });
  parts_.engine.finish();  // before the last loss is read, so that the last lap is as long as its steps
  read_losses(0);
  write_trace();
  save_last();
  if (!error_ && !interrupted_ && parts_.val_data != nullptr && !evaluated()) attempt([&] { evaluate(stop); });
  save_last();
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
          .step_ms = throughput_.total().step_ms,
          .elapsed_s = elapsed_s(),
          .train_curve = history_.points(),
          .val_curve = val_curve_};
}

void Trainer::train(const StopFn& stop) {
  if (n_resumed_ > 0 && owes_evaluation()) between_steps(stop);  // the stopped run had not come to it
  while (!error_ && !interrupted_ && n_launched_ < steps_) {
    interrupted_ = stop();
    if (interrupted_) return;
    step();
    between_steps(stop);
  }
}

void Trainer::between_steps(const StopFn& stop) {
  if (!error_ && owes_evaluation()) evaluate(stop);
  if (!error_ && !interrupted_ && save_due()) save();
}

/// Time for it counts in no speed.
void Trainer::save() {
  parts_.engine.finish();
  read_losses(0);
  if (parts_.checkpoints == nullptr || saving_failed_) return;
  throughput_.pause();
  parts_.progress.show(fmt::format("step {}/{}  saving a checkpoint", n_launched_, steps_));
  saving_failed_ = true;
  attempt([&] {
    const SaveMetrics saved = parts_.checkpoints->save(state(), save_due() && !owes_evaluation());
    saving_failed_ = false;
    n_saved_ = n_launched_;
    write(saved);
    parts_.progress.print(fmt::format("step {}: saved {} ({} in {:.1f} s)", saved.step,
                                      parts_.checkpoints->last()->string(),
                                      human_bytes(static_cast<std::size_t>(saved.bytes)), saved.seconds));
  });
  throughput_.resume();
}

void Trainer::save_last() {
  const bool wanted = interrupted_ || error_ || options_.save_every > 0;
  if (wanted && n_launched_ > n_saved_) save();
}

void Trainer::attempt(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kIo) throw;   // the device or the optimizer failed: the weights may be torn
    if (error_) log::error("{}", error.what());  // the first one is thrown to the caller
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
  if (n_launched_ > n_resumed_ + 1) {
    read_losses(1);
    if (n_read_ >= n_resumed_ + untraced_steps_ + kTraceSteps) write_trace();
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
    add_loss(loss, launched.n_tokens);
  } else {
    ++n_skipped_;
    log::warn("step {} is skipped, a gradient of it is not finite: its loss is {:g}", n_read_, loss);
  }
  tokens_ += launched.n_tokens;
  throughput_.count_step(launched.n_tokens);
  parts_.progress.update(progress_state(loss, launched.lr, stats));
  if (n_read_ == 1 || n_read_ % options_.log_every == 0 || n_read_ == steps_) log_step(launched, loss, stats);
}

/// Without a target the loss is 0, and no measure of anything.
void Trainer::add_loss(double loss, std::int64_t n_tokens) {
  if (n_tokens > 0) return history_.add(n_read_, loss);
  if (std::exchange(told_of_no_target_, true)) return;
  log::warn(
      "step {} has no valid target, all of its tokens are masked: it teaches nothing, and the loss 0 of such steps "
      "is left out of means and curve; more sequences in a step or order = shuffled may avoid them",
      n_read_);
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
                     .elapsed_s = elapsed_s()});
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
  FERRY_CHECK(n_tokens > 0, kConfig, "val_data holds no valid target any more: its mask was changed");
  const double val_loss = loss_sum / static_cast<double>(n_tokens);
  check_finite("validation loss", val_loss, n_launched_, learning_rate(options_.schedule, n_launched_ - 1));
  last_eval_ = EvalMetrics{.step = n_launched_,
                           .val_loss = val_loss,
                           .val_tokens = n_tokens,
                           .byte_vocabulary = options_.byte_vocabulary,
                           .elapsed_s = elapsed_s()};
  val_curve_.push_back({n_launched_, val_loss});
  write(*last_eval_);
  parts_.progress.print(describe(*last_eval_));
}

void Trainer::start_trace_if_due() {
  if (parts_.trace != nullptr && n_launched_ == n_resumed_ + untraced_steps_) parts_.engine.start_trace(kTraceSteps);
}

void Trainer::write_trace() {
  if (parts_.trace == nullptr || n_launched_ <= n_resumed_ + untraced_steps_) return;
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
