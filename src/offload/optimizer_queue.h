// SPDX-License-Identifier: Apache-2.0
// AdamW on the CPU while the device works: pieces are updated as their gradients arrive, soonest needed first.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <queue>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "backend/backend.h"
#include "core/thread_pool.h"
#include "offload/host_updates.h"
#include "offload/timeline.h"

namespace ferry {

struct OptimizerQueueOptions {
  AdamwOptions adamw;
  double grad_clip = 0;          // largest global norm of the gradients; 0 = updates need not wait for the norm
  bool norms = true;             // norms of all gradients are submitted: what is not finite is found
  Timeline* timeline = nullptr;  // notes updates and waits; may be absent
};

/// What is known of a step when all of its gradients have arrived.
struct StepVerdict {
  bool applied = true;     // false: a gradient is not finite, and with clipping nothing of the step was applied
  double grad_norm = 0;    // global, of the rounded gradients; NaN where norms are not taken
  double coefficient = 1;  // that the gradients were multiplied with
  StepScalars scalars;     // of this step's updates, the coefficient included
};

/// Where AdamW stands: version v of a piece means that it has seen v steps.
///
/// Two threads of its own: the watcher synchronises on the events in order of submission; the runner updates, among
/// what has arrived, the earliest step first, and in a step what the next forward pass reads soonest: see Part. Without
/// clipping updates are eager; with clipping they are held until the step's last gradient has arrived and the norm is
/// known.
///
/// A piece of the embedding table is updated in parts: the rows that the batch reads wait for the gradient of the
/// input, all others do not; of both, the rows of the next batch, if it is known, come first. begin_step, the
/// submissions and the waits are called by the launching thread.
///
/// A loss or gradient that is not finite stops an eager queue: the next wait throws Error{kDevice} with its name. With
/// clipping the step is skipped: every version goes on, no weight changes, and AdamW does not count it.
class OptimizerQueue {
 public:
  static constexpr std::int64_t kHistory = 8;  // steps whose times and verdicts are kept

  OptimizerQueue(Backend& backend, const ParameterTable& parameters, const PieceTable& pieces,
                 const ParameterArrays& arrays, const OptimizerQueueOptions& options, ThreadPool& pool);
  ~OptimizerQueue();
  OptimizerQueue(const OptimizerQueue&) = delete;
  OptimizerQueue& operator=(const OptimizerQueue&) = delete;

  bool deferred() const { return options_.grad_clip > 0; }

  /// Before the first step: `step` of them lie behind, of which AdamW has counted `applied`.
  void start_at(std::int64_t step, std::int64_t applied);
  /// Submissions from now on belong to `step`, the pieces' next version is step + 1. `next` are the rows that the next
  /// batch will read; null where it is not known. Returns the scalars of an eager step.
  StepScalars begin_step(std::int64_t step, double lr, std::shared_ptr<const BatchRows> rows,
                         std::shared_ptr<const BatchRows> next);
  /// `values` are in host memory once `arrived` is reached: the loss, or sums of squares of `what`'s gradient.
  void submit_loss(std::span<const float> values, EventRef arrived);
  void submit_norms(std::string what, std::span<const float> values, EventRef arrived);
  /// The piece's gradient is in its array once `arrived` is reached. Of the embedding table: that of the rows that the
  /// batch does not read; without a gradient array it is 0 and `arrived` may be null.
  void submit(int piece, EventRef arrived);
  /// The last submission of the step: the gradients of the rows that the batch reads, once `arrived` is reached. They
  /// count for the norm, and update their rows unless the table lives on the device.
  void submit_rows(const RowGradients& gradients, EventRef arrived);

  /// Never blocks. Pieces that the queue does not update have every version.
  bool is_at(int piece, std::int64_t version);
  /// Blocks until the piece has that version. Rethrows what failed on the queue's threads.
  void wait_for(int piece, std::int64_t version);
  /// Blocks until those rows of the embedding table have that version. Rows that the step before named as the next ones
  /// have it as soon as they are updated, and until release_rows() no other update begins: the device has nothing to do
  /// before it has the rows, and the pool gathers them. Other rows have it with their pieces.
  void wait_for_rows(const BatchRows& rows, std::int64_t version);
  void release_rows();
  /// Blocks until all pieces have that version.
  void wait_for_all(std::int64_t version);
  /// Blocks until all of the step's gradients have arrived. `step` is one of the last kHistory.
  StepVerdict verdict(std::int64_t step);

  /// Milliseconds that updates of `step` have taken so far; `step` is one of the last kHistory.
  double busy_ms(std::int64_t step);
  /// Milliseconds that callers have been blocked in the waits, in total.
  double waited_ms() const { return waited_ms_; }
  /// Steps that changed the weights.
  std::int64_t applied_steps();

 private:
  /// One step, from its first submission to its last update.
  struct Step {
    std::int64_t step = 0;
    double lr = 0;
    StepScalars scalars;
    std::shared_ptr<const BatchRows> rows;
    std::shared_ptr<const BatchRows> next;  // may be null
    RowSplit split;                         // of `rows` and `next`
    int early_parts = 0;                    // guarded by mutex_: left to do before the rows of `next` are up to date
    RowGradients row_gradients;             // set by the watcher before the runner sees it
    std::vector<double> row_squares;        // of row_gradients; runner only
    double squares = 0;                     // guarded by mutex_
    std::string not_finite;                 // guarded by mutex_; the first loss or gradient that is not
    std::vector<int> held;                  // guarded by mutex_; pieces that have arrived
  };
  using StepRef = std::shared_ptr<Step>;
  static constexpr int kAllElse = -1;  // in place of a piece: the loss, norms, the rows of the batch
  enum class Kind { kLoss, kNorms, kPiece, kRows };
  struct Arrival {
    Kind kind = Kind::kPiece;
    StepRef step;
    EventRef arrived = nullptr;
    int piece = kAllElse;
    std::string what;
    std::span<const float> values;
    RowGradients row_gradients;
  };
  /// What is updated at once, soonest needed first.
  enum class Part {
    kRows,       // the rows that the batch reads; only those that the next batch reads too, if it is known
    kEarlyRows,  // of a piece of the table: the rows of the next batch; all that the batch does not read if none is
                 // known, or no layer waits
    kPiece,      // of all other segments
    kLateRows,   // the other rows that the batch reads, if the next batch is known
    kOtherRows,  // of a piece of the table: what neither batch reads, if kEarlyRows left it
  };
  struct Update {
    Part part = Part::kPiece;
    int piece = kAllElse;
    StepRef step;
    bool whole = false;  // of kEarlyRows: all rows that the batch does not read

    auto rank() const { return std::tuple(step->step, part, piece); }
  };
  struct Later {
    bool operator()(const Update& a, const Update& b) const { return a.rank() > b.rank(); }
  };
  struct Record {
    double busy_ms = 0;
    std::optional<StepVerdict> verdict;
  };

  static double ms_since(Timeline::Clock::time_point begin) {
    return std::chrono::duration<double, std::milli>(Timeline::Clock::now() - begin).count();
  }

  // optimizer_threads.cpp
  void watch(std::stop_token stop);
  void run(std::stop_token stop);
  void take(const Arrival& arrival);                                              // mutex_ is held
  void note(Step& step, const std::string& what, std::span<const float> values);  // mutex_ is held
  Update take_next();                                                             // mutex_ is held
  void apply(const Update& update);
  void finish(const Update& update);  // mutex_ is held
  void note_span(const Update& update, Timeline::Clock::time_point begin);
  void apply_rows(const Update& update);
  void take_rows(Step& step, const std::vector<std::int32_t>& which, const StepScalars* scalars);
  void finish_rows(const StepRef& step, bool all);
  void resolve(const StepRef& step);  // mutex_ is held
  [[noreturn]] static void throw_not_finite(const Step& step);
  void make_ready(const StepRef& step, int piece);     // mutex_ is held
  void finish_part(Step& step, Part part, int piece);  // mutex_ is held
  void finish_piece(Step& step, int piece);            // mutex_ is held
  void fail(std::exception_ptr failure);

  // optimizer_queue.cpp
  template <class Ready>
  void wait_until(SpanName name, Ready&& ready);
  void push(Arrival arrival);
  Arrival make_arrival(Kind kind, EventRef arrived) const;
  StepScalars scalars_of(double lr, std::int64_t count, double coefficient) const;
  Record& record_of(std::int64_t step) { return records_[static_cast<std::size_t>(step % kHistory)]; }
  bool in_table(int piece) const { return piece >= first_table_piece_ && piece < end_table_piece_; }
  /// Stands for the hand-over of a piece, or of anything else, from one thread to the next: see Backend::publish.
  const void* key(const std::vector<char>& keys, int piece) const {
    return &keys[piece >= 0 ? static_cast<std::size_t>(piece) : keys.size() - 1];
  }

  Backend& backend_;
  const PieceTable& pieces_;
  const OptimizerQueueOptions options_;
  HostUpdates updates_;
  int first_table_piece_ = 0;  // pieces of the embedding table
  int end_table_piece_ = 0;
  std::vector<bool> updated_;                 // by piece: its versions are counted here
  std::vector<char> submitted_, ready_keys_;  // addresses alone: one for each piece and one for all else
  StepRef step_;                              // launching thread only
  std::shared_ptr<const BatchRows> named_;    // launching thread only: `next` of the step before
  double waited_ms_ = 0;                      // launching thread only

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<Arrival> arriving_;                                   // guarded by mutex_
  std::priority_queue<Update, std::vector<Update>, Later> ready_;  // guarded by mutex_
  int n_ready_pieces_ = 0;                                         // guarded by mutex_: those of Part::kPiece
  std::vector<std::int64_t> versions_;                             // guarded by mutex_
  std::vector<int> parts_done_;                                    // guarded by mutex_: of a table piece's next version
  std::int64_t early_version_ = 0;                                 // guarded by mutex_: of the rows named as the next
  std::optional<std::int64_t> wanted_;  // guarded by mutex_: version of them that is waited for
  std::array<Record, static_cast<std::size_t>(kHistory)> records_;  // guarded by mutex_
  std::int64_t applied_steps_ = 0;                                  // guarded by mutex_
  std::exception_ptr failure_;                                      // guarded by mutex_
  std::jthread watcher_;
  std::jthread runner_;
};

}  // namespace ferry
