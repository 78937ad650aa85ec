// SPDX-License-Identifier: Apache-2.0
// Cutting segments into pieces.
#include "offload/pieces.h"

#include "catch.h"
#include "offload/tiny_model.h"

namespace ferry::test {

TEST_CASE("pieces cover every segment once, in order, in whole rows of the vocabulary") {
  const bool tied = GENERATE(true, false);
  const std::int64_t piece_elems = GENERATE(1, 50, 1000, 1000000);
  const ParameterTable table(small_config(tied), 16);
  const PieceTable pieces(table, piece_elems);
  for (int segment = 0; segment < static_cast<int>(table.segments().size()); ++segment) {
    const Segment& info = table.segment(segment);
    std::int64_t next = info.offset;
    for (int id = pieces.first_of(segment); id < pieces.first_of(segment + 1); ++id) {
      const Piece& piece = pieces.piece(id);
      CHECK(piece.segment == segment);
      CHECK(piece.offset == next);
      if (info.n_rows > 0) CHECK(piece.elems % 24 == 0);
      next += piece.elems;
    }
    CHECK(next == info.offset + info.elems);
  }
}

TEST_CASE("parameter ranges leave out padding and mark what is decayed") {
  const ParameterTable table(small_config(true), 16);
  std::int64_t total = 0;
  std::int64_t decayed = 0;
  for (const ParameterRange& range : parameter_ranges(table, 0, table.flat_elems())) {
    total += range.elems;
    if (range.decayed) decayed += range.elems;
  }
  CHECK(total == table.n_parameters());
  const std::int64_t norms = 24 * (2 * 3 + 1);
  CHECK(decayed == total - norms - 61 * 24);
}

TEST_CASE("parameter ranges name their parameter and place in it, wherever they are cut") {
  const ParameterTable table(small_config(true), 16);
  const auto& parameters = table.parameters();
  for (std::int64_t offset = 0; offset < table.flat_elems(); offset += 100) {
    for (const ParameterRange& range : parameter_ranges(table, offset, 100)) {
      const ParameterInfo& info = parameters.at(static_cast<std::size_t>(range.parameter));
      CHECK(info.offset + range.element == range.offset);
      CHECK(range.element + range.elems <= info.elems);
    }
  }
}

TEST_CASE("a range inside a parameter stays inside it") {
  const ParameterTable table(small_config(true), 16, {.decay_embeddings = true, .freeze = {}});
  const auto ranges = parameter_ranges(table, 30, 40);
  REQUIRE(ranges.size() == 1);
  CHECK(ranges[0].offset == 30);
  CHECK(ranges[0].elems == 40);
  CHECK(ranges[0].decayed);
}

TEST_CASE("parameter ranges leave out what is frozen") {
  const ParameterTable table(small_config(true), 16, {.decay_embeddings = false, .freeze = {"*mlp*", "model.norm.*"}});
  std::int64_t total = 0;
  for (const ParameterRange& range : parameter_ranges(table, 0, table.flat_elems())) total += range.elems;
  std::int64_t want = 0;
  for (const ParameterInfo& info : table.parameters()) {
    if (info.name.find("mlp") == std::string::npos && info.name != "model.norm.weight") want += info.elems;
  }
  CHECK(total == want);
}

}  // namespace ferry::test
