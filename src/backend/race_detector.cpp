// SPDX-License-Identifier: Apache-2.0
// Finds the memory of an access, asks its history, words what it answers.
#include "backend/race_detector.h"

#include <utility>

#include "core/error.h"

namespace ferry {

std::string to_string(const Work& work) {
  switch (work.kind) {
    case Work::Kind::kOp: return fmt::format("op {}, {}", work.index, work.name);
    case Work::Kind::kCopy: return fmt::format("copy {}, {}", work.index, work.name);
    case Work::Kind::kHost: return work.name;
    case Work::Kind::kNone: break;
  }
  return "its start";
}

std::size_t RaceDetector::add_actor(ActorKind kind, std::string name) {
  actors_.push_back({kind, std::move(name), {}, {}});
  return actors_.size() - 1;
}

void RaceDetector::add_memory(const void* data, std::size_t size_bytes) {
  memory_.insert_or_assign(address(data), Memory{size_bytes, "memory without a name", {}});
}

void RaceDetector::name_memory(const void* data, std::string purpose) {
  memory_.at(address(data)).purpose = std::move(purpose);
}

void RaceDetector::begin(std::size_t actor, const Work& work) {
  actors_[actor].clock.tick(actor);
  actors_[actor].work = work;
}

std::string RaceDetector::access(std::size_t actor, const char* tensor, bool writes, const void* data,
                                 std::size_t size_bytes) {
  const Actor& self = actors_[actor];
  const auto after = memory_.upper_bound(address(data));
  const auto it = after == memory_.begin() ? memory_.end() : std::prev(after);
  const std::size_t begin = it == memory_.end() ? 0 : address(data) - it->first;
  if (it == memory_.end() || begin + size_bytes > it->second.size_bytes) {
    return fmt::format(
        "{} on {} {} {}: {} bytes at {} are not inside memory of this backend: it is freed already, or too small, or "
        "came from elsewhere: take it from allocate_device or allocate_host, and keep it until the work is done",
        to_string(self.work), self.name, writes ? "writes" : "reads", tensor, size_bytes, data);
  }
  const TracedAccess traced{.actor = actor,
                            .time = self.clock.time(actor),
                            .work = self.work,
                            .tensor = tensor,
                            .writes = writes,
                            .begin = begin,
                            .end = begin + size_bytes};
  const auto other = it->second.history.add(traced, self.clock);
  return other ? describe_race(it->second, *other, traced) : "";
}

std::string RaceDetector::describe(const TracedAccess& access) const {
  return fmt::format("{} on {} {} {}, bytes {} to {}", to_string(access.work), name(access.actor),
                     access.writes ? "writes" : "reads", access.tensor, access.begin, access.end - 1);
}

std::string RaceDetector::describe_race(const Memory& memory, const TracedAccess& earlier,
                                        const TracedAccess& later) const {
  return fmt::format("a race in {}: {}; {}; nothing orders the two: {}", memory.purpose, describe(earlier),
                     describe(later), advice(earlier, later));
}

std::string RaceDetector::advice(const TracedAccess& earlier, const TracedAccess& later) const {
  const std::string first = to_string(earlier.work), second = to_string(later.work);
  const Actor &from = actors_[earlier.actor], &to = actors_[later.actor];
  if (from.kind == ActorKind::kThread) {
    return fmt::format(
        "a lock is missing between {} and the thread that {} {}: publish after the first, observe before the second",
        from.name, to.kind == ActorKind::kThread ? "does" : "enqueues", second);
  }
  return fmt::format("an event is missing between {} and {}: record it after {}, {} before {}", from.name, to.name,
                     first, to.kind == ActorKind::kThread ? "sync with it" : "wait for it", second);
}

}  // namespace ferry
