// SPDX-License-Identifier: Apache-2.0
#include "config/nearest.h"

#include <vector>

#include "catch.h"

namespace ferry {
namespace {

TEST_CASE("edit distance counts insertions, deletions, substitutions and swaps") {
  CHECK(edit_distance("", "") == 0);
  CHECK(edit_distance("", "abc") == 3);
  CHECK(edit_distance("abc", "") == 3);
  CHECK(edit_distance("steps", "step") == 1);
  CHECK(edit_distance("steps", "sterps") == 1);
  CHECK(edit_distance("steps", "stops") == 1);
  CHECK(edit_distance("steps", "setps") == 1);
  CHECK(edit_distance("kitten", "sitting") == 3);
}

TEST_CASE("dash and underscore count as equal") { CHECK(edit_distance("batch-size", "batch_size") == 0); }

TEST_CASE("the nearest word is found, and nothing when none is close") {
  const std::vector<std::string_view> known = {"lr", "seq_len", "batch_size", "beta1", "beta2"};
  CHECK(nearest("batchsize", known) == "batch_size");
  CHECK(nearest("seqlen", known) == "seq_len");
  CHECK(nearest("beta3", known) == "beta1");
  CHECK(nearest("zzzzzz", known) == "");
  CHECK(nearest("", known) == "");
  CHECK(nearest("xy", known) == "");
}

TEST_CASE("a very long word has no nearest one") {
  const std::vector<std::string_view> known = {"lr"};
  CHECK(nearest(std::string(100000, 'l'), known) == "");
}

TEST_CASE("the suggestion is a sentence part, or nothing") {
  const std::vector<std::string_view> known = {"train"};
  CHECK(did_you_mean("trian", known) == ": did you mean 'train'?");
  CHECK(did_you_mean("export", known) == "");
}

}  // namespace
}  // namespace ferry
