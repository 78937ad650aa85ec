// SPDX-License-Identifier: Apache-2.0
// Who read and wrote each byte of one allocation last, as far as a later access may conflict with it.
// Source: Flanagan & Freund 2009, "FastTrack: efficient and precise dynamic race detection", with all reads kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "backend/vector_clock.h"

namespace ferry {

/// What an actor does: one op, one copy, or the use of memory by a host thread.
struct Work {
  enum class Kind { kNone, kOp, kCopy, kHost };
  Kind kind = Kind::kNone;
  const char* name = "";   // "matmul", "host to device", or the label of a host access; outlives the history
  std::int64_t index = 0;  // among the ops or the copies of the backend, from 0
};

struct TracedAccess {
  std::size_t actor = 0;
  std::uint64_t time = 0;  // of `actor`, at this work
  Work work;
  const char* tensor = "";  // "d", "source"; outlives the history
  bool writes = false;
  std::size_t begin = 0, end = 0;  // bytes of the allocation, end excluded; not empty
};

/// Per range of bytes the last write and the reads since that are not ordered among each other. This is enough to find
/// a first conflict: what is forgotten happens before something that is kept, so an access that is not ordered after
/// the forgotten one is not ordered after the kept one either.
class AccessHistory {
 public:
  /// Adds an access of an actor whose clock is `clock`. Returns an earlier one that overlaps, where one of both writes,
  /// and that `clock` does not know; then nothing is added.
  std::optional<TracedAccess> add(const TracedAccess& access, const VectorClock& clock);

  std::size_t n_ranges() const { return ranges_.size(); }

 private:
  struct Range {
    std::size_t end = 0;
    std::optional<TracedAccess> write;
    std::vector<TracedAccess> reads;
  };
  const TracedAccess* conflict(const TracedAccess& access, const VectorClock& clock) const;
  void add_write(const TracedAccess& access);
  void add_read(const TracedAccess& access, const VectorClock& clock);
  void cut(std::size_t at);

  std::map<std::size_t, Range> ranges_;  // by first byte; disjoint
};

}  // namespace ferry
