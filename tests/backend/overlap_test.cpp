// SPDX-License-Identifier: Apache-2.0
// Overlap of strided views against comparing them byte by byte.
#include "backend/overlap.h"

#include <set>
#include <vector>

#include "catch.h"
#include "core/rng.h"

using namespace ferry;

namespace {

std::set<const void*> bytes_of(const TensorView& view) {
  std::set<const void*> bytes;
  std::array<std::int64_t, 4> shape{1, 1, 1, 1}, stride{};
  for (std::size_t d = 0; d < static_cast<std::size_t>(view.rank); ++d) {
    shape[d] = view.shape[d];
    stride[d] = view.stride[d];
  }
  const auto elem_bytes = static_cast<std::int64_t>(size_of(view.dtype));
  for (std::int64_t i = 0; i < shape[0] * shape[1] * shape[2] * shape[3]; ++i) {
    const std::int64_t offset = i / (shape[1] * shape[2] * shape[3]) * stride[0] +
                                i / (shape[2] * shape[3]) % shape[1] * stride[1] + i / shape[3] % shape[2] * stride[2] +
                                i % shape[3] * stride[3];
    for (std::int64_t b = 0; b < elem_bytes; ++b) {
      bytes.insert(static_cast<const std::byte*>(view.data) + offset * elem_bytes + b);
    }
  }
  return bytes;
}

bool share_a_byte(const TensorView& a, const TensorView& b) {
  const auto first = bytes_of(a);
  for (const void* byte : bytes_of(b)) {
    if (first.count(byte)) return true;
  }
  return false;
}

struct Draw {
  CounterRng rng{5, "overlap"};
  std::uint64_t n = 0;
  std::int64_t below(std::int64_t bound) { return rng.bits(n++) % bound; }
};

/// Up to four nested dimensions with random gaps, in random order, somewhere in `memory`.
TensorView random_view(Draw& draw, std::vector<std::byte>& memory) {
  TensorView view;
  view.dtype = draw.below(2) == 0 ? DType::kF32 : DType::kBf16;
  view.rank = static_cast<int>(1 + draw.below(4));
  view.data = memory.data() + 2 * draw.below(200);
  std::int64_t step = 1;
  for (int d = view.rank - 1; d >= 0; --d) {
    const auto i = static_cast<std::size_t>(d);
    view.shape[i] = 1 + draw.below(4);
    view.stride[i] = step;
    step = step * view.shape[i] + draw.below(3) * draw.below(5);
  }
  if (view.rank >= 3 && draw.below(2) == 0) {
    std::swap(view.shape[0], view.shape[1]);
    std::swap(view.stride[0], view.stride[1]);
  }
  return view;
}

}  // namespace

TEST_CASE("overlap agrees with comparing byte by byte") {
  std::vector<std::byte> memory(16384);
  Draw draw;
  int n_wrong = 0, n_overlapping = 0;
  for (int i = 0; i < 3000; ++i) {
    const TensorView a = random_view(draw, memory), b = random_view(draw, memory);
    REQUIRE(!self_overlap(a));
    const bool expected = share_a_byte(a, b);
    n_overlapping += expected;
    n_wrong += overlap(a, b) != expected || overlap(b, a) != expected;
  }
  CHECK(n_wrong == 0);
  CHECK(n_overlapping > 500);
  CHECK(n_overlapping < 2500);
}

TEST_CASE("columns side by side do not overlap, the whole overlaps each") {
  std::vector<float> data(64);
  const TensorView whole(data.data(), DType::kF32, {8, 8});
  CHECK(!overlap(whole.columns(0, 5), whole.columns(5, 3)));
  CHECK(overlap(whole.columns(0, 5), whole.columns(4, 4)));
  CHECK(overlap(whole, whole.columns(7, 1)));
  CHECK(!overlap(whole.rows(0, 4), whole.rows(4, 4)));
}

TEST_CASE("absent and empty views overlap nothing") {
  std::vector<float> data(4);
  const TensorView view(data.data(), DType::kF32, {2, 2});
  CHECK(!overlap(view, TensorView()));
  CHECK(!overlap(view, view.rows(1, 0)));
}

TEST_CASE("rows closer than they are long overlap themselves") {
  std::vector<float> data(64);
  TensorView view(data.data(), DType::kF32, {4, 8});
  CHECK(!self_overlap(view));
  view.stride[0] = 7;
  CHECK(self_overlap(view));
  view.stride[0] = 0;
  CHECK(self_overlap(view));
  view.stride[0] = -8;
  CHECK(self_overlap(view));
}
