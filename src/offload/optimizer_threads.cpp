// SPDX-License-Identifier: Apache-2.0
// The watcher and the runner of the optimizer queue.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/error.h"
#include "offload/optimizer_queue.h"

namespace ferry {
namespace {

using Clock = Timeline::Clock;

// As torch.nn.utils.clip_grad_norm_.
constexpr double kClipEpsilon = 1e-6;

}  // namespace

void OptimizerQueue::watch(std::stop_token stop) {
  try {
    std::unique_lock lock(mutex_);
    while (changed_.wait(lock, stop, [&] { return !arriving_.empty(); })) {
      const Arrival arrival = std::move(arriving_.front());
      arriving_.pop_front();
      lock.unlock();
      backend_.observe(key(submitted_, arrival.piece));
      if (arrival.arrived != nullptr) backend_.sync(arrival.arrived);
      backend_.host_access(Access::kRead, arrival.values.data(), arrival.values.size_bytes(), "losses and norms");
      backend_.publish(key(ready_keys_, arrival.piece));
      lock.lock();
      take(arrival);
      changed_.notify_all();
    }
  } catch (...) {
    fail(std::current_exception());
  }
}

void OptimizerQueue::take(const Arrival& arrival) {
  Step& step = *arrival.step;
  switch (arrival.kind) {
    case Kind::kLoss: return note(step, arrival.what, arrival.values);
    case Kind::kNorms:
      note(step, arrival.what, arrival.values);
      for (const float value : arrival.values) step.squares += static_cast<double>(value);
      return;
    case Kind::kPiece:
      if (deferred()) {
        step.held.push_back(arrival.piece);
      } else {
        make_ready(arrival.step, arrival.piece);
      }
      return;
    case Kind::kRows:
      step.row_gradients = arrival.row_gradients;
      ready_.push({Part::kRows, kAllElse, arrival.step});
      if (step.next) ready_.push({Part::kLateRows, kAllElse, arrival.step});
      return;
  }
}

void OptimizerQueue::make_ready(const StepRef& step, int piece) {
  const Part part = in_table(piece) ? Part::kEarlyRows : Part::kPiece;
  if (part == Part::kPiece) ++n_ready_pieces_;
  ready_.push({part, piece, step});
}

/// What is not finite stops an eager queue, before anything that was submitted later is applied.
void OptimizerQueue::note(Step& step, const std::string& what, std::span<const float> values) {
  for (const float value : values) {
    if (std::isfinite(value) || !step.not_finite.empty()) continue;
    const float shown = std::isnan(value) ? std::abs(value) : value;  // a NaN's sign says nothing
    step.not_finite = fmt::format("{} of step {} is {}", what, step.step + 1, shown);
    if (!deferred()) throw_not_finite(step);
  }
}

void OptimizerQueue::throw_not_finite(const Step& step) {
  detail::throw_error(
      ErrorKind::kDevice,
      fmt::format("{}: training diverged at lr {:g} and nothing is saved; lower lr, raise warmup_steps, set grad_clip, "
                  "which skips such a step, or look for damaged values in the data or init_from",
                  step.not_finite, step.lr));
}

void OptimizerQueue::run(std::stop_token stop) {
  try {
    std::unique_lock lock(mutex_);
    const auto may_go_on = [&] { return !wanted_ || early_version_ < *wanted_; };
    while (changed_.wait(lock, stop, [&] { return !ready_.empty() && failure_ == nullptr && may_go_on(); })) {
      const Update update = take_next();
      lock.unlock();
      backend_.observe(key(ready_keys_, update.piece));
      const auto begin = Clock::now();
      apply(update);
      const double ms = ms_since(begin);
      note_span(update, begin);
      lock.lock();
      record_of(update.step->step).busy_ms += ms;
      finish(update);
      changed_.notify_all();
    }
  } catch (...) {
    fail(std::current_exception());
  }
}

/// Single rows are far slower to update than a piece of them, so they come first only where something else would wait.
OptimizerQueue::Update OptimizerQueue::take_next() {
  Update update = ready_.top();
  ready_.pop();
  if (update.part == Part::kPiece) --n_ready_pieces_;
  update.whole = update.part == Part::kEarlyRows && (!update.step->next || n_ready_pieces_ == 0);
  return update;
}

void OptimizerQueue::finish(const Update& update) {
  finish_part(*update.step, update.part, update.piece);
  if (update.part != Part::kEarlyRows || !update.step->next) return;
  if (update.whole) return finish_part(*update.step, Part::kOtherRows, update.piece);
  ready_.push({Part::kOtherRows, update.piece, update.step});
}

void OptimizerQueue::apply(const Update& update) {
  const Step& step = *update.step;
  if (update.part == Part::kRows || update.part == Part::kLateRows) return apply_rows(update);
  const Piece& piece = pieces_.piece(update.piece);
  if (update.part == Part::kPiece) return updates_.update(piece, step.scalars);
  if (update.whole) return updates_.update_other_rows(piece, step.rows->distinct(), step.scalars);
  if (update.part == Part::kEarlyRows) return updates_.update_rows_of(piece, step.split.early, step.scalars);
  updates_.update_other_rows(piece, step.split.either, step.scalars);
}

void OptimizerQueue::note_span(const Update& update, Timeline::Clock::time_point begin) {
  if (options_.timeline == nullptr) return;
  SpanName name{.what = "AdamW", .piece = update.piece};
  if (update.part == Part::kRows) name = {"AdamW of the batch's rows"};
  if (update.part == Part::kLateRows) name = {"AdamW of the batch's other rows"};
  if (update.part == Part::kEarlyRows && !update.whole) name.what = "AdamW of the next batch's rows";
  options_.timeline->note_host(Lane::kOptimizer, name, update.step->step, begin);
}

/// Everything of the step has arrived. Clipping needs all squares before the first update; without it a row is updated
/// as its gradient is made, and the verdict comes with the last part.
void OptimizerQueue::apply_rows(const Update& update) {
  Step& step = *update.step;
  const bool first = update.part == Part::kRows;
  const bool updates = updated_[static_cast<std::size_t>(first_table_piece_)];
  const auto& which = first ? step.split.both : step.split.rest;
  if (!deferred()) {
    take_rows(step, which, updates ? &step.scalars : nullptr);
    return finish_rows(update.step, !first || !step.next);
  }
  if (first) {
    for (const auto* rows : {&step.split.both, &step.split.rest}) take_rows(step, *rows, nullptr);
    finish_rows(update.step, true);
  }
  if (updates && step.not_finite.empty()) take_rows(step, which, &step.scalars);
}

void OptimizerQueue::take_rows(Step& step, const std::vector<std::int32_t>& which, const StepScalars* scalars) {
  if (step.row_gradients) updates_.update_rows(*step.rows, step.row_gradients, which, scalars, step.row_squares);
}

/// Squares that are not finite are found with either part; with `all` of them the norm is whole.
void OptimizerQueue::finish_rows(const StepRef& ref, bool all) {
  Step& step = *ref;
  const double squares = std::accumulate(step.row_squares.begin(), step.row_squares.end(), 0.0);
  const std::scoped_lock lock(mutex_);
  const auto sum = static_cast<float>(squares);
  if (options_.norms) note(step, "the gradient of model.embed_tokens.weight", std::span(&sum, 1));
  if (!all) return;
  step.squares += squares;
  resolve(ref);
}

/// The verdict, and with it what was held.
void OptimizerQueue::resolve(const StepRef& ref) {
  Step& step = *ref;
  StepVerdict verdict{.applied = step.not_finite.empty(),
                      .grad_norm = options_.norms ? std::sqrt(step.squares) : std::numeric_limits<double>::quiet_NaN(),
                      .coefficient = 1,
                      .scalars = step.scalars};
  if (deferred() && verdict.applied) {
    verdict.coefficient = std::min(1.0, options_.grad_clip / (verdict.grad_norm + kClipEpsilon));
    step.scalars = scalars_of(step.lr, ++applied_steps_, verdict.coefficient);
    verdict.scalars = step.scalars;
  }
  record_of(step.step).verdict = verdict;
  backend_.publish(&records_);
  for (const int piece : step.held) {
    if (verdict.applied) {
      backend_.publish(key(ready_keys_, piece));
      make_ready(ref, piece);
    } else {
      if (in_table(piece)) finish_part(step, Part::kEarlyRows, piece);
      if (step.next || !in_table(piece)) finish_part(step, Part::kOtherRows, piece);
    }
  }
}

void OptimizerQueue::finish_part(Step& step, Part part, int piece) {
  if (part == Part::kRows || part == Part::kLateRows) {
    if (!updated_[static_cast<std::size_t>(first_table_piece_)]) return;
    const bool all = part == Part::kLateRows || !step.next;
    for (int id = first_table_piece_; all && id < end_table_piece_; ++id) finish_piece(step, id);
  } else {
    finish_piece(step, piece);
  }
  if (!step.next || (part != Part::kRows && part != Part::kEarlyRows)) return;
  backend_.publish(&early_version_);
  if (--step.early_parts == 0) early_version_ = step.step + 1;
}

/// One part of it: a piece of the table has three, or two where the next batch is not known.
void OptimizerQueue::finish_piece(Step& step, int piece) {
  const auto index = static_cast<std::size_t>(piece);
  FERRY_ASSERT(versions_[index] == step.step);
  backend_.publish(&versions_[index]);
  const int n_parts = !in_table(piece) ? 1 : step.next ? 3 : 2;
  if (++parts_done_[index] < n_parts) return;
  parts_done_[index] = 0;
  ++versions_[index];
}

void OptimizerQueue::fail(std::exception_ptr failure) {
  {
    const std::scoped_lock lock(mutex_);
    if (!failure_) failure_ = std::move(failure);
  }
  changed_.notify_all();
}

}  // namespace ferry
