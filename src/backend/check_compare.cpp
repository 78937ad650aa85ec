// SPDX-License-Identifier: Apache-2.0
// The one table of tolerances between backends, and the comparison.
#include "backend/check_compare.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string_view>

#include "core/error.h"

namespace ferry {
namespace {

constexpr const char* kAnyOp = "";

struct Entry {
  const char* op;
  std::optional<DType> dtype;  // none: any
  CheckTolerance tolerance;
};

// The first entry that fits counts. What sums add is kOfLargestPerRootTerm.
constexpr Entry kTolerances[] = {
    // They move bits, or round once what is exact before.
    {EmbeddingForward::kName, std::nullopt, {}},
    {Cast::kName, std::nullopt, {}},
    {Fill::kName, std::nullopt, {}},
    // Their contract fixes the order of every operation.
    {EmbeddingBackward::kName, std::nullopt, {}},
    {Adamw::kName, std::nullopt, {}},
    // A second rounding: of the probabilities to bf16, before they are multiplied by v.
    {AttentionForward::kName, DType::kBf16, {0x1p-7, 0x1p-8}},
    // Three products in a row with bf16 inputs, so rounding errors of the probabilities and of their gradients add up.
    {AttentionBackward::kName, DType::kBf16, {0x1p-7, 0x1p-6}},
    // One rounding to nearest: f32 results that hardly differ may fall on the two sides of a tie, one step of 2^-7.
    {kAnyOp, DType::kBf16, {0x1p-7, 0}},
    // exp, log, rsqrt and division of two libraries: 2^-24 times some tens (exp of -20 loses 20 units).
    {kAnyOp, DType::kF32, {0x1p-18, 0}},
    {kAnyOp, std::nullopt, {}},
};

/// An addition rounds by 2^-24 of the partial sum; over n of them in another order errors grow as sqrt(n). Eight times
/// that: tensor cores truncate, and terms that cancel leave a largest element smaller than the partial sums.
constexpr double kOfLargestPerRootTerm = 0x1p-21;

/// Terms of the longest sum behind one element of an output; 1 where there is none.
struct LongestSum {
  std::int64_t operator()(const RmsNormForward& op) const { return op.x.shape[1]; }
  std::int64_t operator()(const RmsNormBackward& op) const { return std::max(op.x.shape[0], op.x.shape[1]); }
  std::int64_t operator()(const Matmul& op) const { return op.a.shape[op.transpose_a ? 0 : 1]; }
  std::int64_t operator()(const AttentionForward& op) const { return std::max(op.k.shape[1], op.k.shape[3]); }
  std::int64_t operator()(const AttentionBackward& op) const {
    const std::int64_t queries_of_key = op.q.shape[1] * (op.q.shape[2] / op.k.shape[2]);
    return std::max({op.k.shape[1], op.k.shape[3], queries_of_key});
  }
  std::int64_t operator()(const CrossEntropyChunk& op) const { return op.logits.shape[1]; }
  std::int64_t operator()(const CrossEntropyLoss& op) const { return op.targets.shape[0]; }
  std::int64_t operator()(const SumOfSquares& op) const { return op.x.elems(); }
  template <class Other>
  std::int64_t operator()(const Other&) const {
    return 1;
  }
};

/// Elements of a view in host memory, by position in row-major order.
class Elements {
 public:
  using Index = std::array<std::int64_t, TensorView::kMaxRank>;

  explicit Elements(const TensorView& view) : view_(view), elem_bytes_(size_of(view.dtype)) {}

  double value(const Index& index) const {
    switch (view_.dtype) {
      case DType::kF32: return static_cast<double>(load<float>(index));
      case DType::kBf16: return static_cast<double>(to_f32(load<Bf16>(index)));
      case DType::kI32: return load<std::int32_t>(index);
      case DType::kI16: return load<std::int16_t>(index);
    }
    return 0;
  }

  bool same_bits(const Elements& other, const Index& index) const {
    return std::memcmp(at(index), other.at(index), elem_bytes_) == 0;
  }

  /// fn(index) for every element, the last index fastest.
  template <class Fn>
  void for_each(Fn&& fn) const {
    Index index{};
    for (std::int64_t left = view_.elems(); left > 0; --left) {
      fn(index);
      for (int d = view_.rank - 1; d >= 0; --d) {
        const auto i = static_cast<std::size_t>(d);
        if (++index[i] < view_.shape[i]) break;
        index[i] = 0;
      }
    }
  }

 private:
  const std::byte* at(const Index& index) const {
    std::int64_t offset = 0;
    for (std::size_t d = 0; d < static_cast<std::size_t>(view_.rank); ++d) offset += index[d] * view_.stride[d];
    return static_cast<const std::byte*>(view_.data) + offset * static_cast<std::int64_t>(elem_bytes_);
  }
  template <class T>
  T load(const Index& index) const {
    T result;
    std::memcpy(&result, at(index), sizeof(T));
    return result;
  }

  TensorView view_;
  std::size_t elem_bytes_;
};

}  // namespace

CheckTolerance check_tolerance(const Op& op, DType dtype) {
  const auto* entry = std::ranges::find_if(kTolerances, [&](const Entry& each) {
    return (each.op == std::string_view(kAnyOp) || each.op == std::string_view(op_name(op))) &&
           (!each.dtype || *each.dtype == dtype);
  });
  CheckTolerance tolerance = entry->tolerance;
  if (tolerance.relative != 0) {
    tolerance.of_largest += kOfLargestPerRootTerm * std::sqrt(static_cast<double>(std::visit(LongestSum{}, op)));
  }
  return tolerance;
}

std::string CheckDifference::index_text() const {
  return fmt::format("({})", fmt::join(index.begin(), index.begin() + rank, ", "));
}

std::optional<CheckDifference> first_difference(const TensorView& got, const TensorView& want,
                                                const CheckTolerance& tolerance) {
  FERRY_ASSERT(got.rank == want.rank && got.shape == want.shape && got.dtype == want.dtype);
  const Elements got_elements(got), want_elements(want);
  CheckDifference first;
  first.rank = got.rank;
  want_elements.for_each([&](const Elements::Index& index) {
    const double value = std::abs(want_elements.value(index));
    if (std::isfinite(value)) first.largest = std::max(first.largest, value);
  });
  const bool exact = tolerance.relative == 0 && tolerance.of_largest == 0;
  want_elements.for_each([&](const Elements::Index& index) {
    if (got_elements.same_bits(want_elements, index)) return;
    const double got_value = got_elements.value(index), want_value = want_elements.value(index);
    if (std::isnan(got_value) && std::isnan(want_value)) return;
    const double allowed = tolerance.relative * std::abs(want_value) + tolerance.of_largest * first.largest;
    // An infinite want allows nothing but itself: the sum above would allow everything.
    if (!exact && std::isfinite(want_value) && std::abs(got_value - want_value) <= allowed) return;
    if (first.n_differ++ > 0) return;
    first.index = index;
    first.got = got_value;
    first.want = want_value;
    first.allowed = std::isfinite(want_value) ? allowed : 0;
  });
  if (first.n_differ == 0) return std::nullopt;
  return first;
}

}  // namespace ferry
