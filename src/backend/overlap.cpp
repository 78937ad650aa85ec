// SPDX-License-Identifier: Apache-2.0
// A view as nested runs: an innermost run of bytes, repeated at ever larger pitches. Two nests are compared from the
// largest pitch inwards, which leaves few relative offsets to look at on each level.
#include "backend/overlap.h"

#include <algorithm>
#include <cstddef>

namespace ferry {
namespace {

struct Nest {
  int depth = 0;                                           // number of pitches
  std::array<std::int64_t, TensorView::kMaxRank> count{};  // outermost first
  std::array<std::int64_t, TensorView::kMaxRank> pitch{};  // bytes, descending
  std::int64_t run = 0;                                    // bytes of the innermost run

  std::int64_t span_from(int level) const {
    std::int64_t bytes = run;
    for (int d = level; d < depth; ++d) bytes += (at(count, d) - 1) * at(pitch, d);
    return bytes;
  }
  static std::int64_t at(const std::array<std::int64_t, TensorView::kMaxRank>& list, int d) {
    return list[static_cast<std::size_t>(d)];
  }
};

/// Extents above 1 with their strides in bytes, largest stride first.
Nest sorted_dimensions(const TensorView& view) {
  struct Dimension {
    std::int64_t count, pitch;
  };
  std::array<Dimension, TensorView::kMaxRank> dimensions{};
  std::size_t n = 0;
  const auto elem_bytes = static_cast<std::int64_t>(size_of(view.dtype));
  for (std::size_t d = 0; d < static_cast<std::size_t>(view.rank); ++d) {
    if (view.shape[d] != 1) dimensions[n++] = {view.shape[d], view.stride[d] * elem_bytes};
  }
  std::stable_sort(dimensions.begin(), dimensions.begin() + static_cast<std::ptrdiff_t>(n),
                   [](const Dimension& x, const Dimension& y) { return x.pitch > y.pitch; });
  Nest nest;
  nest.depth = static_cast<int>(n);
  nest.run = elem_bytes;
  for (std::size_t d = 0; d < n; ++d) {
    nest.count[d] = dimensions[d].count;
    nest.pitch[d] = dimensions[d].pitch;
  }
  return nest;
}

/// Joins dimensions that follow each other without a gap into the innermost run.
Nest make_nest(const TensorView& view) {
  Nest nest = sorted_dimensions(view);
  while (nest.depth > 0 && nest.pitch[static_cast<std::size_t>(nest.depth - 1)] == nest.run) {
    nest.run *= nest.count[static_cast<std::size_t>(--nest.depth)];
  }
  return nest;
}

std::int64_t floor_divide(std::int64_t a, std::int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }

/// The part of `a` from level la on against the part of `b` from lb on, which starts `offset` bytes later.
bool overlap_from(const Nest& a, int la, const Nest& b, int lb, std::int64_t offset) {
  const std::int64_t pitch_a = la < a.depth ? Nest::at(a.pitch, la) : 0;
  const std::int64_t pitch_b = lb < b.depth ? Nest::at(b.pitch, lb) : 0;
  const std::int64_t pitch = std::max(pitch_a, pitch_b);
  if (pitch == 0) return offset < a.run && -offset < b.run;
  const std::int64_t count_a = pitch_a == pitch ? Nest::at(a.count, la++) : 1;
  const std::int64_t count_b = pitch_b == pitch ? Nest::at(b.count, lb++) : 1;
  // Repetition j of b lies offset + (j - i) * pitch after repetition i of a; both spans bound the difference.
  const std::int64_t first = std::max(-(count_a - 1), floor_divide(-b.span_from(lb) - offset, pitch) + 1);
  const std::int64_t last = std::min(count_b - 1, floor_divide(a.span_from(la) - 1 - offset, pitch));
  for (std::int64_t difference = first; difference <= last; ++difference) {
    if (overlap_from(a, la, b, lb, offset + difference * pitch)) return true;
  }
  return false;
}

}  // namespace

bool overlap(const TensorView& a, const TensorView& b) {
  if (!a || !b || a.elems() == 0 || b.elems() == 0) return false;
  const auto offset =
      static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(b.data) - reinterpret_cast<std::uintptr_t>(a.data));
  if (offset >= static_cast<std::int64_t>(a.span_bytes()) || -offset >= static_cast<std::int64_t>(b.span_bytes())) {
    return false;
  }
  return overlap_from(make_nest(a), 0, make_nest(b), 0, offset);
}

bool self_overlap(const TensorView& view) {
  const Nest nest = sorted_dimensions(view);
  for (int d = 0; d < nest.depth; ++d) {
    if (Nest::at(nest.pitch, d) < nest.span_from(d + 1)) return true;
  }
  return false;
}

}  // namespace ferry
