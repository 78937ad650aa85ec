// SPDX-License-Identifier: Apache-2.0
// What the launching thread calls: submissions, and waits for versions.
#include "offload/optimizer_queue.h"

#include <algorithm>

#include "core/error.h"

namespace ferry {

OptimizerQueue::OptimizerQueue(Backend& backend, const ParameterTable& parameters, const PieceTable& pieces,
                               const ParameterArrays& arrays, const OptimizerQueueOptions& options, ThreadPool& pool)
    : backend_(backend),
      pieces_(pieces),
      options_(options),
      updates_(backend, parameters, arrays, pool),
      submitted_(static_cast<std::size_t>(pieces.n_pieces()) + 1),
      ready_keys_(submitted_.size()),
      versions_(static_cast<std::size_t>(pieces.n_pieces()), 0),
      parts_done_(versions_.size()) {
  FERRY_ASSERT(options.norms || options.grad_clip == 0);
  first_table_piece_ = pieces.of_embedding().first;
  end_table_piece_ = pieces.of_embedding().end;
  for (int id = 0; id < pieces.n_pieces(); ++id) {
    const Segment& segment = parameters.segment(pieces.piece(id).segment);
    updated_.push_back(parameters.is_trained(segment) && arrays.home_of(segment.offset) == Home::kHost);
  }
  watcher_ = std::jthread([this](std::stop_token stop) { watch(stop); });
  runner_ = std::jthread([this](std::stop_token stop) { run(stop); });
}

OptimizerQueue::~OptimizerQueue() {
  watcher_.request_stop();
  runner_.request_stop();
}

StepScalars OptimizerQueue::scalars_of(double lr, std::int64_t count, double coefficient) const {
  StepScalars scalars{.decayed = adamw_scalars(options_.adamw, lr, count, true),
                      .plain = adamw_scalars(options_.adamw, lr, count, false)};
  scalars.decayed.gradient_scale = scalars.plain.gradient_scale = static_cast<float>(coefficient);
  return scalars;
}

void OptimizerQueue::start_at(std::int64_t step, std::int64_t applied) {
  const std::scoped_lock lock(mutex_);
  FERRY_ASSERT(step_ == nullptr);
  applied_steps_ = applied;
  if (step == 0) return;
  std::ranges::fill(versions_, step);
  record_of(step - 1).verdict = StepVerdict{};
}

StepScalars OptimizerQueue::begin_step(std::int64_t step, double lr, std::shared_ptr<const BatchRows> rows,
                                       std::shared_ptr<const BatchRows> next) {
  named_ = step_ ? step_->next : nullptr;
  step_ = std::make_shared<Step>();
  step_->step = step;
  step_->lr = lr;
  step_->rows = std::move(rows);
  step_->next = std::move(next);
  step_->split = split_rows(*step_->rows, step_->next.get());
  if (step_->next) step_->early_parts = end_table_piece_ - first_table_piece_ + 1;
  const std::scoped_lock lock(mutex_);
  record_of(step) = {};
  if (!deferred()) step_->scalars = scalars_of(lr, ++applied_steps_, 1);
  return step_->scalars;
}

OptimizerQueue::Arrival OptimizerQueue::make_arrival(Kind kind, EventRef arrived) const {
  Arrival arrival;
  arrival.kind = kind;
  arrival.step = step_;
  arrival.arrived = arrived;
  return arrival;
}

void OptimizerQueue::push(Arrival arrival) {
  backend_.publish(key(submitted_, arrival.piece));
  {
    const std::scoped_lock lock(mutex_);
    arriving_.push_back(std::move(arrival));
  }
  changed_.notify_all();
}

void OptimizerQueue::submit_loss(std::span<const float> values, EventRef arrived) {
  Arrival arrival = make_arrival(Kind::kLoss, arrived);
  arrival.what = "the loss";
  arrival.values = values;
  push(std::move(arrival));
}

void OptimizerQueue::submit_norms(std::string what, std::span<const float> values, EventRef arrived) {
  Arrival arrival = make_arrival(Kind::kNorms, arrived);
  arrival.what = std::move(what);
  arrival.values = values;
  push(std::move(arrival));
}

void OptimizerQueue::submit(int piece, EventRef arrived) {
  FERRY_ASSERT(updated_[static_cast<std::size_t>(piece)]);
  Arrival arrival = make_arrival(Kind::kPiece, arrived);
  arrival.piece = piece;
  push(std::move(arrival));
}

void OptimizerQueue::submit_rows(const RowGradients& gradients, EventRef arrived) {
  Arrival arrival = make_arrival(Kind::kRows, arrived);
  arrival.row_gradients = gradients;
  push(std::move(arrival));
}

bool OptimizerQueue::is_at(int piece, std::int64_t version) {
  const auto index = static_cast<std::size_t>(piece);
  if (!updated_[index]) return true;
  const std::scoped_lock lock(mutex_);
  if (versions_[index] != version) return false;
  backend_.observe(&versions_[index]);
  return true;
}

template <class Ready>
void OptimizerQueue::wait_until(SpanName name, Ready&& ready) {
  std::unique_lock lock(mutex_);
  if (failure_ == nullptr && !ready()) {
    const auto begin = Timeline::Clock::now();
    changed_.wait(lock, [&] { return failure_ != nullptr || ready(); });
    waited_ms_ += ms_since(begin);
    if (options_.timeline != nullptr) options_.timeline->note_wait(name, begin);
  }
  if (failure_) std::rethrow_exception(failure_);
}

void OptimizerQueue::wait_for(int piece, std::int64_t version) {
  const auto index = static_cast<std::size_t>(piece);
  if (!updated_[index]) return;
  wait_until({.what = "wait for AdamW", .piece = piece}, [&] { return versions_[index] >= version; });
  FERRY_ASSERT(is_at(piece, version));
}

void OptimizerQueue::wait_for_rows(const BatchRows& rows, std::int64_t version) {
  if (!updated_[static_cast<std::size_t>(first_table_piece_)]) return;
  if (&rows == named_.get()) {
    wait_until({"wait for AdamW of the batch's rows"}, [&] {
      wanted_ = version;
      return early_version_ >= version;
    });
    backend_.observe(&early_version_);
    return;
  }
  for (int id = first_table_piece_; id < end_table_piece_; ++id) {
    if (!rows_within(rows.distinct(), updates_.rows_of(pieces_.piece(id))).empty()) wait_for(id, version);
  }
}

void OptimizerQueue::release_rows() {
  const std::scoped_lock lock(mutex_);
  wanted_.reset();
  changed_.notify_all();
}

void OptimizerQueue::wait_for_all(std::int64_t version) {
  for (int piece = 0; piece < pieces_.n_pieces(); ++piece) wait_for(piece, version);
  if (version > 0) verdict(version - 1);
}

StepVerdict OptimizerQueue::verdict(std::int64_t step) {
  wait_until({"wait for all gradients"}, [&] { return record_of(step).verdict.has_value(); });
  backend_.observe(&records_);
  const std::scoped_lock lock(mutex_);
  return *record_of(step).verdict;
}

double OptimizerQueue::busy_ms(std::int64_t step) {
  const std::scoped_lock lock(mutex_);
  return record_of(step).busy_ms;
}

std::int64_t OptimizerQueue::applied_steps() {
  const std::scoped_lock lock(mutex_);
  return applied_steps_;
}

}  // namespace ferry
