// SPDX-License-Identifier: Apache-2.0
// How long work on a stream takes, by a host's clock or by a device's events.
#pragma once

#include <functional>
#include <memory>

#include "backend/backend.h"

namespace ferry {

class BenchTimer {
 public:
  /// Enqueues one call on the stream.
  using Work = std::function<void(StreamRef)>;

  /// `back_to_back`: calls follow each other between two events of the stream, so that the time of a launch hides
  /// behind the call before; otherwise each call is waited for, and the wall clock counts.
  BenchTimer(Backend& backend, bool back_to_back);

  /// Seconds of one call each; `yardstick` may be empty and gives 0. The two take turns for `limit_s` seconds, at least
  /// once, so that both meet the same noise; the fastest turn of each counts. Blocks.
  struct Fastest {
    double ours = 0;
    double yardstick = 0;
  };
  Fastest take_turns(const Work& ours, const Work& yardstick, double limit_s);

  /// Seconds of one call of work that has run before: of several, or of a single one where that is long or far longer
  /// than `best_s`. Blocks.
  double brief(const Work& work, double best_s);

  StreamRef stream() const { return stream_.get(); }

 private:
  /// How many calls make one turn.
  int calls_per_turn(const Work& work);
  double seconds(const Work& work, int lead_calls, int calls);

  Backend& backend_;
  const bool back_to_back_;
  std::unique_ptr<Event> begin_;
  std::unique_ptr<Event> end_;
  std::unique_ptr<Stream> stream_;  // destroyed first: it waits for its work
};

}  // namespace ferry
