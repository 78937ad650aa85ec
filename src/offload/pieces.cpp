// SPDX-License-Identifier: Apache-2.0
// Cuts segments into pieces.
#include "offload/pieces.h"

#include <algorithm>

#include "core/error.h"

namespace ferry {

PieceTable::PieceTable(const ParameterTable& parameters, std::int64_t piece_elems)
    : first_embedding_(parameters.embedding_segment(0)),
      end_embedding_(first_embedding_ + parameters.n_embedding_segments()) {
  FERRY_ASSERT(piece_elems >= 1);
  int id = 0;
  for (const Segment& segment : parameters.segments()) {
    first_.push_back(n_pieces());
    const std::int64_t row = segment.n_rows > 0 ? segment.elems / segment.n_rows : 1;
    const std::int64_t step = std::max(row, piece_elems / row * row);
    for (std::int64_t done = 0; done < segment.elems; done += step) {
      pieces_.push_back({id, segment.offset + done, std::min(step, segment.elems - done)});
    }
    ++id;
  }
  first_.push_back(n_pieces());
}

std::vector<ParameterRange> parameter_ranges(const ParameterTable& parameters, std::int64_t offset,
                                             std::int64_t elems) {
  std::vector<ParameterRange> ranges;
  const std::int64_t end = offset + elems;
  const auto& infos = parameters.parameters();
  for (std::size_t i = parameters.first_parameter_at(offset); i < infos.size() && infos[i].offset < end; ++i) {
    const ParameterInfo& info = infos[i];
    if (!info.trained) continue;
    const std::int64_t from = std::max(offset, info.offset);
    ranges.push_back({.offset = from,
                      .elems = std::min(end, info.offset + info.elems) - from,
                      .decayed = info.decayed,
                      .parameter = static_cast<std::int64_t>(i),
                      .element = from - info.offset});
  }
  return ranges;
}

}  // namespace ferry
