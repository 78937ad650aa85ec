// SPDX-License-Identifier: Apache-2.0
// AdamW on the CPU while the device works: pieces are updated as their gradients arrive, soonest needed first.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <queue>
#include <thread>
#include <vector>

#include "backend/backend.h"
#include "core/thread_pool.h"
#include "offload/parameter_arrays.h"
#include "offload/pieces.h"

namespace ferry {

/// Gradient of the input embedding as it comes back: d_x of layer 0 in host memory, and the ids that it belongs to.
struct EmbeddingGradient {
  std::vector<std::int32_t> ids;    // (N)
  std::vector<std::int32_t> order;  // (N), sorted by (id, position)
  TensorView d_x;                   // (N, C), host
};

/// Scalars of one step for parameters with and without weight decay.
struct StepScalars {
  AdamwScalars decayed;
  AdamwScalars plain;
};

/// Where AdamW stands: version v of a piece means that v steps have updated it.
///
/// Two threads of its own: the watcher synchronises on the write-back events in order of submission; the runner
/// updates, among the pieces that have arrived, the lowest in the flat space first, since the next forward pass reads
/// them in that order. begin_step, submit and the waits are called by the launching thread.
class OptimizerQueue {
 public:
  static constexpr std::int64_t kHistory = 8;  // steps whose busy time is kept

  OptimizerQueue(Backend& backend, const ParameterTable& parameters, const PieceTable& pieces,
                 const ParameterArrays& arrays, bool decay_embeddings, ThreadPool& pool);
  ~OptimizerQueue();
  OptimizerQueue(const OptimizerQueue&) = delete;
  OptimizerQueue& operator=(const OptimizerQueue&) = delete;

  /// Submissions from now on belong to `step`, the piece's next version is step + 1.
  void begin_step(std::int64_t step, const StepScalars& scalars);
  /// The piece's gradient is in its slab once `arrived` is reached.
  void submit(int piece, EventRef arrived);
  /// Once `arrived` is reached, the rows' sums are added to the gradients of all embedding pieces, then those are
  /// updated. The head's part of a tied table must have been written back by then: submitted pieces must not include
  /// it.
  void submit_embedding(std::shared_ptr<const EmbeddingGradient> gradient, EventRef arrived);

  /// Never blocks.
  bool is_at(int piece, std::int64_t version);
  /// Blocks until the piece has that version. Rethrows what failed on the queue's threads.
  void wait_for(int piece, std::int64_t version);
  /// Blocks until all pieces have that version.
  void wait_for_all(std::int64_t version);

  /// Milliseconds that updates of `step` have taken so far; `step` is one of the last kHistory.
  double busy_ms(std::int64_t step);
  /// Milliseconds that callers have been blocked in the waits, in total.
  double waited_ms() const { return waited_ms_; }

 private:
  struct Update {
    int piece = 0;
    std::int64_t step = 0;
    StepScalars scalars;
    std::shared_ptr<const EmbeddingGradient> rows;
  };
  struct Arrival {
    EventRef arrived = nullptr;
    std::vector<Update> updates;
  };
  struct LaterPiece {
    bool operator()(const Update& a, const Update& b) const { return a.piece > b.piece; }
  };

  void watch(std::stop_token stop);
  void run(std::stop_token stop);
  void apply(const Update& update);
  void add_rows(const Update& update);
  void clear_rows(const Update& update);
  void fail(std::exception_ptr failure);
  Update make_update(int piece) const;
  void push(Arrival arrival);

  Backend& backend_;
  const ParameterTable& parameters_;
  const PieceTable& pieces_;
  const ParameterArrays& arrays_;
  const bool decay_embeddings_;
  ThreadPool& pool_;
  std::int64_t step_ = 0;  // launching thread only
  StepScalars scalars_;    // launching thread only
  double waited_ms_ = 0;   // launching thread only

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<Arrival> arriving_;                                        // guarded by mutex_
  std::priority_queue<Update, std::vector<Update>, LaterPiece> ready_;  // guarded by mutex_
  std::vector<std::int64_t> versions_;                                  // guarded by mutex_
  std::array<double, static_cast<std::size_t>(kHistory)> busy_ms_{};    // guarded by mutex_
  std::exception_ptr failure_;                                          // guarded by mutex_
  std::jthread watcher_;
  std::jthread runner_;
};

}  // namespace ferry
