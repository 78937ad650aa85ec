// SPDX-License-Identifier: Apache-2.0
// Ranges are cut where an access begins or ends; a write makes one range of all that it covers.
#include "backend/access_history.h"

#include <algorithm>
#include <utility>

namespace ferry {

std::optional<TracedAccess> AccessHistory::add(const TracedAccess& access, const VectorClock& clock) {
  if (const TracedAccess* const other = conflict(access, clock)) return *other;
  cut(access.begin);
  cut(access.end);
  if (access.writes) {
    add_write(access);
  } else {
    add_read(access, clock);
  }
  return std::nullopt;
}

const TracedAccess* AccessHistory::conflict(const TracedAccess& access, const VectorClock& clock) const {
  const auto unordered = [&clock](const TracedAccess& other) { return !clock.knows(other.actor, other.time); };
  auto it = ranges_.upper_bound(access.begin);
  if (it != ranges_.begin()) --it;
  for (; it != ranges_.end() && it->first < access.end; ++it) {
    const Range& range = it->second;
    if (range.end <= access.begin) continue;
    if (range.write && unordered(*range.write)) return &*range.write;
    if (!access.writes) continue;
    const auto read = std::ranges::find_if(range.reads, unordered);
    if (read != range.reads.end()) return &*read;
  }
  return nullptr;
}

void AccessHistory::add_write(const TracedAccess& access) {
  const auto first = ranges_.lower_bound(access.begin);
  const auto next = ranges_.erase(first, ranges_.lower_bound(access.end));
  ranges_.emplace_hint(next, access.begin, Range{access.end, access, {}});
}

void AccessHistory::add_read(const TracedAccess& access, const VectorClock& clock) {
  auto it = ranges_.lower_bound(access.begin);
  for (std::size_t at = access.begin; at < access.end; at = it->second.end, ++it) {
    if (it == ranges_.end() || it->first > at) {
      const std::size_t gap_end = it == ranges_.end() ? access.end : std::min(access.end, it->first);
      it = ranges_.emplace_hint(it, at, Range{gap_end, std::nullopt, {}});
    }
    std::vector<TracedAccess>& reads = it->second.reads;
    std::erase_if(reads, [&clock](const TracedAccess& read) { return clock.knows(read.actor, read.time); });
    reads.push_back(access);
  }
}

/// No range goes across `at`.
void AccessHistory::cut(std::size_t at) {
  const auto next = ranges_.upper_bound(at);
  if (next == ranges_.begin()) return;
  const auto it = std::prev(next);
  if (it->first == at || it->second.end <= at) return;
  ranges_.emplace_hint(next, at, it->second);
  it->second.end = at;
}

}  // namespace ferry
