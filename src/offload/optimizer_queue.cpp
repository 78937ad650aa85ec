// SPDX-License-Identifier: Apache-2.0
// The watcher and the runner of the optimizer queue.
#include "offload/optimizer_queue.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "core/error.h"
#include "optim/embedding_rows.h"

namespace ferry {
namespace {

using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

std::size_t slot_of(std::int64_t step) { return static_cast<std::size_t>(step % OptimizerQueue::kHistory); }

}  // namespace

OptimizerQueue::OptimizerQueue(Backend& backend, const ParameterTable& parameters, const PieceTable& pieces,
                               const ParameterArrays& arrays, bool decay_embeddings, ThreadPool& pool)
    : backend_(backend),
      parameters_(parameters),
      pieces_(pieces),
      arrays_(arrays),
      decay_embeddings_(decay_embeddings),
      pool_(pool),
      versions_(static_cast<std::size_t>(pieces.n_pieces()), 0),
      watcher_([this](std::stop_token stop) { watch(stop); }),
      runner_([this](std::stop_token stop) { run(stop); }) {}

OptimizerQueue::~OptimizerQueue() {
  watcher_.request_stop();
  runner_.request_stop();
}

void OptimizerQueue::begin_step(std::int64_t step, const StepScalars& scalars) {
  step_ = step;
  scalars_ = scalars;
  const std::scoped_lock lock(mutex_);
  busy_ms_[slot_of(step)] = 0;
}

OptimizerQueue::Update OptimizerQueue::make_update(int piece) const {
  return {.piece = piece, .step = step_, .scalars = scalars_, .rows = nullptr};
}

void OptimizerQueue::push(Arrival arrival) {
  {
    const std::scoped_lock lock(mutex_);
    arriving_.push_back(std::move(arrival));
  }
  changed_.notify_all();
}

void OptimizerQueue::submit(int piece, EventRef arrived) {
  push({.arrived = arrived, .updates = {make_update(piece)}});
}

void OptimizerQueue::submit_embedding(std::shared_ptr<const EmbeddingGradient> gradient, EventRef arrived) {
  Arrival arrival{.arrived = arrived, .updates = {}};
  const int first = parameters_.embedding_segment(0);
  const int last = first + parameters_.n_embedding_segments();
  for (int piece = pieces_.first_of(first); piece < pieces_.first_of(last); ++piece) {
    arrival.updates.push_back(make_update(piece));
    arrival.updates.back().rows = gradient;
  }
  push(std::move(arrival));
}

void OptimizerQueue::watch(std::stop_token stop) {
  try {
    std::unique_lock lock(mutex_);
    while (changed_.wait(lock, stop, [&] { return !arriving_.empty(); })) {
      Arrival arrival = std::move(arriving_.front());
      arriving_.pop_front();
      lock.unlock();
      backend_.sync(arrival.arrived);
      lock.lock();
      for (Update& update : arrival.updates) ready_.push(std::move(update));
      changed_.notify_all();
    }
  } catch (...) {
    fail(std::current_exception());
  }
}

void OptimizerQueue::run(std::stop_token stop) {
  try {
    std::unique_lock lock(mutex_);
    while (changed_.wait(lock, stop, [&] { return !ready_.empty(); })) {
      const Update update = ready_.top();
      ready_.pop();
      lock.unlock();
      const auto begin = Clock::now();
      apply(update);
      const double ms = ms_since(begin);
      lock.lock();
      busy_ms_[slot_of(update.step)] += ms;
      std::int64_t& version = versions_[static_cast<std::size_t>(update.piece)];
      FERRY_ASSERT(version == update.step);
      ++version;
      changed_.notify_all();
    }
  } catch (...) {
    fail(std::current_exception());
  }
}

void OptimizerQueue::apply(const Update& update) {
  if (update.rows) add_rows(update);
  const Piece& piece = pieces_.piece(update.piece);
  for (const auto& [offset, elems, decayed] :
       parameter_ranges(parameters_, piece.offset, piece.elems, decay_embeddings_)) {
    const TensorView low = arrays_.weights_low_at(offset, elems);
    const AdamwRange range{.dtype = arrays_.dtype,
                           .state = arrays_.state,
                           .weight = arrays_.weights_at(offset, elems).data,
                           .weight_low = low ? low.as<std::int16_t>() : nullptr,
                           .m = arrays_.m_at(offset, elems).data,
                           .v = arrays_.v_at(offset, elems).data,
                           .gradient = arrays_.gradients_at(offset, elems).data,
                           .n = elems};
    adamw_update(range, decayed ? update.scalars.decayed : update.scalars.plain, simd_level(), pool_);
  }
  if (update.rows && !parameters_.tied()) clear_rows(update);
}

void OptimizerQueue::add_rows(const Update& update) {
  const Piece& piece = pieces_.piece(update.piece);
  const Segment& segment = parameters_.segment(piece.segment);
  const std::int64_t width = segment.elems / segment.n_rows;
  const std::int64_t first_row = segment.first_row + (piece.offset - segment.offset) / width;
  scatter_add_rows(arrays_.dtype, update.rows->ids, update.rows->order, update.rows->d_x.data, width, first_row,
                   piece.elems / width, arrays_.gradients_at(piece.offset, piece.elems).data, pool_);
}

/// Rows of an untied embedding have a gradient only where the batch reads them: what was added is taken away again.
void OptimizerQueue::clear_rows(const Update& update) {
  const Piece& piece = pieces_.piece(update.piece);
  const Segment& segment = parameters_.segment(piece.segment);
  const std::int64_t width = segment.elems / segment.n_rows;
  const std::int64_t table = segment.offset - segment.first_row * width;  // offset of row 0
  for (const std::int32_t id : update.rows->ids) {
    const std::int64_t offset = table + id * width;
    if (offset < piece.offset || offset >= piece.offset + piece.elems) continue;
    const TensorView row = arrays_.gradients_at(offset, width);
    std::memset(row.data, 0, row.size_bytes());
  }
}

void OptimizerQueue::fail(std::exception_ptr failure) {
  {
    const std::scoped_lock lock(mutex_);
    if (!failure_) failure_ = std::move(failure);
  }
  changed_.notify_all();
}

bool OptimizerQueue::is_at(int piece, std::int64_t version) {
  const std::scoped_lock lock(mutex_);
  return versions_[static_cast<std::size_t>(piece)] == version;
}

void OptimizerQueue::wait_for(int piece, std::int64_t version) {
  const auto begin = Clock::now();
  std::unique_lock lock(mutex_);
  const auto& reached = versions_[static_cast<std::size_t>(piece)];
  changed_.wait(lock, [&] { return failure_ != nullptr || reached >= version; });
  waited_ms_ += ms_since(begin);
  if (failure_) std::rethrow_exception(failure_);
  FERRY_ASSERT(reached == version);
}

void OptimizerQueue::wait_for_all(std::int64_t version) {
  for (int piece = 0; piece < pieces_.n_pieces(); ++piece) wait_for(piece, version);
}

double OptimizerQueue::busy_ms(std::int64_t step) {
  const std::scoped_lock lock(mutex_);
  return busy_ms_[slot_of(step)];
}

}  // namespace ferry
