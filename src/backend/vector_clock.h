// SPDX-License-Identifier: Apache-2.0
// Logical time: what each actor (a stream or a host thread) knows of the work of all actors.
// Source: Mattern 1989, "Virtual time and global states of distributed systems".
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace ferry {

/// A count of work for every actor; actors are numbered from 0. Those never heard of are at 0.
class VectorClock {
 public:
  std::uint64_t time(std::size_t actor) const { return actor < times_.size() ? times_[actor] : 0; }
  /// True when the work that `actor` did at `time` happens before whatever comes after this clock.
  bool knows(std::size_t actor, std::uint64_t time_of_work) const { return time(actor) >= time_of_work; }

  /// `actor` does another piece of work.
  void tick(std::size_t actor) {
    if (times_.size() <= actor) times_.resize(actor + 1);
    ++times_[actor];
  }

  /// Learns all that `other` knows. True when something of it is new.
  bool join(const VectorClock& other) {
    if (times_.size() < other.times_.size()) times_.resize(other.times_.size());
    bool any_new = false;
    for (std::size_t i = 0; i < other.times_.size(); ++i) {
      any_new = any_new || other.times_[i] > times_[i];
      times_[i] = std::max(times_[i], other.times_[i]);
    }
    return any_new;
  }

 private:
  std::vector<std::uint64_t> times_;
};

}  // namespace ferry
