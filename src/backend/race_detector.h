// SPDX-License-Identifier: Apache-2.0
// Decides from vector clocks whether two accesses to memory are ordered. Knows streams and threads as actors, no
// backend; not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>

#include "backend/access_history.h"
#include "backend/vector_clock.h"

namespace ferry {

class RaceDetector {
 public:
  enum class ActorKind { kStream, kThread };

  /// The number of a new actor; `name` as messages give it, such as "stream h2d".
  std::size_t add_actor(ActorKind kind, std::string name);
  const std::string& name(std::size_t actor) const { return actors_[actor].name; }
  /// What the actor has done and learnt. Edges are joins of clocks.
  VectorClock& clock(std::size_t actor) { return actors_[actor].clock; }
  const Work& last_work(std::size_t actor) const { return actors_[actor].work; }

  /// Memory begins without a history. remove_memory forgets it.
  void add_memory(const void* data, std::size_t size_bytes);
  void name_memory(const void* data, std::string purpose);
  void remove_memory(const void* data) { memory_.erase(address(data)); }

  /// From now on accesses of `actor` belong to `work`, which comes after all that the actor did and learnt.
  void begin(std::size_t actor, const Work& work);
  /// Bytes [data, data + size_bytes) as one access, size_bytes >= 1. Returns what is wrong with it, with both accesses
  /// and what to try, or "". `tensor` outlives the detector.
  std::string access(std::size_t actor, const char* tensor, bool writes, const void* data, std::size_t size_bytes);

 private:
  struct Actor {
    ActorKind kind;
    std::string name;
    VectorClock clock;
    Work work;
  };
  struct Memory {
    std::size_t size_bytes = 0;
    std::string purpose;
    AccessHistory history;
  };

  static std::uintptr_t address(const void* data) { return reinterpret_cast<std::uintptr_t>(data); }
  std::string describe(const TracedAccess& access) const;
  std::string describe_race(const Memory& memory, const TracedAccess& earlier, const TracedAccess& later) const;
  std::string advice(const TracedAccess& earlier, const TracedAccess& later) const;

  std::deque<Actor> actors_;
  std::map<std::uintptr_t, Memory> memory_;  // by address
};

/// "op 12, matmul", "copy 3, host to device", "gather_rows", or "its start" for Kind::kNone.
std::string to_string(const Work& work);

}  // namespace ferry
