// SPDX-License-Identifier: Apache-2.0
// Segments cut into pieces: the unit of copies, of AdamW updates and of versions.
#pragma once

#include <cstdint>
#include <vector>

#include "model/parameter_table.h"

namespace ferry {

struct Piece {
  int segment = 0;
  std::int64_t offset = 0;  // in the flat space
  std::int64_t elems = 0;
};

/// Pieces of every segment, in flat order; pieces of vocabulary segments hold whole rows.
class PieceTable {
 public:
  /// `piece_elems` is the target size; rows wider than it make pieces of one row.
  PieceTable(const ParameterTable& parameters, std::int64_t piece_elems);

  int n_pieces() const { return static_cast<int>(pieces_.size()); }
  const Piece& piece(int id) const { return pieces_[static_cast<std::size_t>(id)]; }
  /// Pieces of a segment: [first_of(segment), first_of(segment + 1)).
  int first_of(int segment) const { return first_[static_cast<std::size_t>(segment)]; }
  /// Pieces of the input embedding, which are the head's own when tied.
  struct IdRange {
    int first = 0;
    int end = 0;
  };
  IdRange of_embedding() const { return {first_of(first_embedding_), first_of(end_embedding_)}; }

 private:
  std::vector<Piece> pieces_;
  std::vector<int> first_;
  int first_embedding_ = 0;  // segments
  int end_embedding_ = 0;
};

/// A part of one trained parameter, for AdamW.
struct ParameterRange {
  std::int64_t offset = 0;  // in the flat space
  std::int64_t elems = 0;
  bool decayed = false;        // weight decay applies
  std::int64_t parameter = 0;  // its number in the table
  std::int64_t element = 0;    // the part's first element in it
};

/// The trained parameters that overlap [offset, offset + elems) of the flat space; the padding between them is left
/// out.
std::vector<ParameterRange> parameter_ranges(const ParameterTable& parameters, std::int64_t offset, std::int64_t elems);

}  // namespace ferry
