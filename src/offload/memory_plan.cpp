// SPDX-License-Identifier: Apache-2.0
// First-fit packing of buffers by lifetime.
#include "offload/memory_plan.h"

#include <algorithm>
#include <numeric>

#include "backend/backend.h"

namespace ferry {

void add_line(std::vector<MemoryLine>& lines, const std::string& purpose, std::size_t size_bytes) {
  if (size_bytes == 0) return;
  const auto same = std::ranges::find(lines, purpose, &MemoryLine::purpose);
  if (same != lines.end()) {
    same->size_bytes += size_bytes;
  } else {
    lines.push_back({purpose, size_bytes});
  }
}

std::size_t total_bytes(const std::vector<MemoryLine>& lines) {
  return std::accumulate(lines.begin(), lines.end(), std::size_t{0},
                         [](std::size_t sum, const MemoryLine& line) { return sum + line.size_bytes; });
}

MemoryPlan::Id MemoryPlan::add(std::string purpose, std::size_t size_bytes, PhaseSet phases) {
  constexpr std::size_t kAlign = Buffer::kAlignment;
  const std::size_t rounded = phases.empty() ? 0 : (size_bytes + kAlign - 1) / kAlign * kAlign;
  const bool alone = reuse_ == Reuse::kNever && !phases.empty();
  buffers_.push_back({std::move(purpose), rounded, alone ? PhaseSet::all() : phases, 0});
  return static_cast<Id>(buffers_.size()) - 1;
}

/// Buffers that live through all phases lie behind the others: nothing shares their place, and they cut no gap in two.
void MemoryPlan::pack() {
  std::vector<Planned*> passing, lasting;
  for (Planned& buffer : buffers_) (buffer.phases == PhaseSet::all() ? lasting : passing).push_back(&buffer);
  std::vector<Planned*> by_size = passing;
  std::ranges::stable_sort(by_size, std::ranges::greater{}, &Planned::size_bytes);
  std::vector<Planned*> by_life = by_size;
  std::ranges::stable_sort(by_life, std::ranges::greater{}, [](const Planned* b) { return b->phases.count(); });
  const std::size_t extent = place(by_size);
  arena_bytes_ = std::min(extent, place(by_life));
  if (arena_bytes_ == extent) place(by_size);
  for (Planned* buffer : lasting) {
    buffer->offset = arena_bytes_;
    arena_bytes_ += buffer->size_bytes;
  }
}

std::size_t MemoryPlan::place(const std::vector<Planned*>& order) const {
  std::vector<const Planned*> placed;  // by offset
  std::size_t extent = 0;
  for (Planned* buffer : order) {
    buffer->offset = first_fit(*buffer, placed);
    extent = std::max(extent, buffer->offset + buffer->size_bytes);
    const auto by_offset = [](const Planned* a, const Planned* b) { return a->offset < b->offset; };
    placed.insert(std::ranges::upper_bound(placed, buffer, by_offset), buffer);
  }
  return extent;
}

std::size_t MemoryPlan::first_fit(const Planned& buffer, const std::vector<const Planned*>& placed) const {
  std::size_t offset = 0;
  for (const Planned* other : placed) {
    if (!other->phases.overlaps(buffer.phases)) continue;
    if (offset + buffer.size_bytes <= other->offset) break;
    offset = std::max(offset, other->offset + other->size_bytes);
  }
  return offset;
}

std::vector<MemoryLine> MemoryPlan::peak_lines() const {
  const auto live_bytes = [this](int phase) {
    return std::accumulate(buffers_.begin(), buffers_.end(), std::size_t{0}, [phase](std::size_t sum, const auto& b) {
      return sum + (b.phases.contains(phase) ? b.size_bytes : 0);
    });
  };
  int peak = 0;
  for (int phase = 1; phase < kPhases; ++phase) {
    if (live_bytes(phase) > live_bytes(peak)) peak = phase;
  }
  std::vector<MemoryLine> lines;
  for (const Planned& buffer : buffers_) {
    if (buffer.phases.contains(peak)) add_line(lines, buffer.purpose, buffer.size_bytes);
  }
  std::ranges::stable_sort(lines, std::ranges::greater{}, &MemoryLine::size_bytes);
  if (arena_bytes_ > live_bytes(peak)) lines.push_back({"gaps between buffers", arena_bytes_ - live_bytes(peak)});
  return lines;
}

std::vector<MemoryPlan::Range> MemoryPlan::transient() const {
  std::vector<Range> ranges;
  for (const Planned& buffer : buffers_) {
    if (buffer.size_bytes > 0 && buffer.phases != PhaseSet::all()) ranges.push_back({buffer.offset, buffer.size_bytes});
  }
  return ranges;
}

}  // namespace ferry
