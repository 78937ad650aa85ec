// SPDX-License-Identifier: Apache-2.0
// Device memory by purpose and lifetime, packed into one arena before anything is allocated.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

namespace ferry {

/// One line of a memory table.
struct MemoryLine {
  std::string purpose;
  std::size_t size_bytes = 0;
};

/// Adds to the line of that purpose; 0 bytes add none.
void add_line(std::vector<MemoryLine>& lines, const std::string& purpose, std::size_t size_bytes);
std::size_t total_bytes(const std::vector<MemoryLine>& lines);

/// The parts of a step, in the order in which one layer passes through them.
enum class Phase : std::uint32_t {
  kForwardAttention,
  kForwardMlp,
  kHead,
  kRecomputeAttention,
  kRecomputeMlp,
  kBackwardMlp,
  kBackwardAttention,
  kBackwardInput,  // gradient of the layer's input and of its QKV weights
};
inline constexpr int kPhases = 8;

/// A set of phases in which a buffer holds something.
class PhaseSet {
 public:
  constexpr PhaseSet(std::initializer_list<Phase> phases) {
    for (const Phase phase : phases) bits_ |= 1U << static_cast<std::uint32_t>(phase);
  }
  static constexpr PhaseSet all() {
    PhaseSet set({});
    set.bits_ = (1U << kPhases) - 1;
    return set;
  }
  constexpr bool overlaps(PhaseSet other) const { return (bits_ & other.bits_) != 0; }
  constexpr bool contains(int phase) const { return (bits_ >> phase & 1U) != 0; }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr int count() const { return std::popcount(bits_); }
  constexpr bool operator==(const PhaseSet&) const = default;
  constexpr PhaseSet without(PhaseSet other) const {
    PhaseSet set = *this;
    set.bits_ &= ~other.bits_;
    return set;
  }
  friend constexpr PhaseSet operator|(PhaseSet a, PhaseSet b) {
    a.bits_ |= b.bits_;
    return a;
  }

 private:
  std::uint32_t bits_ = 0;
};

/// Buffers are added, then packed: two buffers that share a phase never overlap. All ops that touch a buffer with fewer
/// than all phases run on one stream, in phase order, so that reuse needs no event.
class MemoryPlan {
 public:
  using Id = int;
  enum class Reuse { kByPhase, kNever };

  /// kNever: every buffer keeps its place to itself, as if it held something in all phases.
  explicit MemoryPlan(Reuse reuse = Reuse::kByPhase) : reuse_(reuse) {}

  /// Sizes are rounded up to Buffer::kAlignment. A buffer of no phase takes no memory.
  Id add(std::string purpose, std::size_t size_bytes, PhaseSet phases);
  /// Fixes all offsets; first fit, largest or longest-lived first, whichever takes less.
  void pack();

  std::size_t offset(Id id) const { return buffers_[static_cast<std::size_t>(id)].offset; }
  std::size_t size_bytes(Id id) const { return buffers_[static_cast<std::size_t>(id)].size_bytes; }
  /// Buffers that hold something in some phases only.
  struct Range {
    std::size_t offset = 0;
    std::size_t size_bytes = 0;
  };
  std::vector<Range> transient() const;
  /// Size of the arena.
  std::size_t arena_bytes() const { return arena_bytes_; }
  /// What lives in the phase that needs most, by purpose, largest first; the lines add up to arena_bytes().
  std::vector<MemoryLine> peak_lines() const;

 private:
  struct Planned {
    std::string purpose;
    std::size_t size_bytes = 0;
    PhaseSet phases = PhaseSet::all();
    std::size_t offset = 0;
  };
  /// Sets the offsets of `order`; returns the end of the last one.
  std::size_t place(const std::vector<Planned*>& order) const;
  std::size_t first_fit(const Planned& buffer, const std::vector<const Planned*>& placed) const;

  Reuse reuse_;
  std::vector<Planned> buffers_;
  std::size_t arena_bytes_ = 0;
};

}  // namespace ferry
