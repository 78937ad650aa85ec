// SPDX-License-Identifier: Apache-2.0
// Messages and rules of OpChecker.
#include "backend/op_checker.h"

#include <algorithm>
#include <string_view>

namespace ferry {
namespace {

bool is_floating(DType dtype) { return dtype == DType::kF32 || dtype == DType::kBf16; }

int rank_of(std::string_view dims) { return static_cast<int>(std::count(dims.begin(), dims.end(), ',')) + 1; }

bool same_view(const TensorView& a, const TensorView& b) {
  if (a.data != b.data || a.dtype != b.dtype || a.rank != b.rank) return false;
  for (std::size_t d = 0; d < static_cast<std::size_t>(a.rank); ++d) {
    if (a.shape[d] != b.shape[d] || (a.shape[d] > 1 && a.stride[d] != b.stride[d])) return false;
  }
  return true;
}

std::string describe_strides(const TensorView& view) {
  std::string text;
  for (int d = 0; d < view.rank; ++d) {
    text += (d ? ", " : "") + std::to_string(view.stride[static_cast<std::size_t>(d)]);
  }
  return fmt::format("{} with strides ({})", view.describe(), text);
}

}  // namespace

void OpChecker::present(const char* name, const TensorView& view, const std::string& expected) const {
  FERRY_CHECK(view, kShape, "{}: {} is missing, expected {}", op_, name, expected);
}

void OpChecker::extents(const char* name, const TensorView& view, const std::string& expected) const {
  for (int d = 0; d < view.rank; ++d) {
    FERRY_CHECK(view.shape[static_cast<std::size_t>(d)] >= 1, kShape,
                "{}: {} is {}, expected {} with every extent 1 or more", op_, name, view.describe(), expected);
  }
}

void OpChecker::layout(const char* name, const TensorView& view, Layout wanted) const {
  if (wanted == Layout::kContiguous) {
    FERRY_CHECK(view.contiguous(), kShape, "{}: {} is {}, expected a contiguous view", op_, name,
                describe_strides(view));
    return;
  }
  const auto last = static_cast<std::size_t>(view.rank - 1);
  FERRY_CHECK(view.shape[last] == 1 || view.stride[last] == 1, kShape,
              "{}: {} is {}, expected a contiguous last dimension", op_, name, describe_strides(view));
  FERRY_CHECK(!self_overlap(view), kShape, "{}: {} is {}, expected rows that do not overlap", op_, name,
              describe_strides(view));
}

void OpChecker::floating(const char* name, const TensorView& view, const char* dims, Layout wanted) const {
  const std::string expected = fmt::format("bf16 or f32 ({})", dims);
  present(name, view, expected);
  FERRY_CHECK(is_floating(view.dtype), kDType, "{}: {} is {}, expected {}", op_, name, view.describe(), expected);
  FERRY_CHECK(view.rank == rank_of(dims), kShape, "{}: {} is {}, expected {}", op_, name, view.describe(), expected);
  extents(name, view, expected);
  layout(name, view, wanted);
}

void OpChecker::indices(const char* name, const TensorView& view, const char* dims) const {
  const std::string expected = fmt::format("i32 ({})", dims);
  present(name, view, expected);
  FERRY_CHECK(view.dtype == DType::kI32, kDType, "{}: {} is {}, expected {}", op_, name, view.describe(), expected);
  FERRY_CHECK(view.rank == rank_of(dims), kShape, "{}: {} is {}, expected {}", op_, name, view.describe(), expected);
  extents(name, view, expected);
  layout(name, view, Layout::kContiguous);
}

void OpChecker::any(const char* name, const TensorView& view) const {
  present(name, view, "a tensor");
  FERRY_CHECK(view.rank >= 1, kShape, "{}: {} has no dimensions, expected 1 or more", op_, name);
  extents(name, view, "a tensor");
  layout(name, view, Layout::kContiguous);
}

void OpChecker::any_floating(const char* name, const TensorView& view) const {
  any(name, view);
  FERRY_CHECK(is_floating(view.dtype), kDType, "{}: {} is {}, expected bf16 or f32", op_, name, view.describe());
}

void OpChecker::matches(const char* name, const TensorView& view, DType dtype,
                        std::initializer_list<std::int64_t> shape, Layout wanted) const {
  const TensorView expected(nullptr, dtype, shape);
  present(name, view, expected.describe());
  FERRY_CHECK(view.dtype == dtype, kDType, "{}: {} is {}, expected {}", op_, name, view.describe(),
              expected.describe());
  FERRY_CHECK(view.rank == expected.rank && std::equal(shape.begin(), shape.end(), view.shape.begin()), kShape,
              "{}: {} is {}, expected {}", op_, name, view.describe(), expected.describe());
  layout(name, view, wanted);
}

void OpChecker::same_shape(const char* name, const TensorView& view, DType dtype, const TensorView& other) const {
  TensorView expected = other;
  expected.dtype = dtype;
  present(name, view, expected.describe());
  FERRY_CHECK(view.dtype == dtype, kDType, "{}: {} is {}, expected {}", op_, name, view.describe(),
              expected.describe());
  FERRY_CHECK(
      view.rank == other.rank && std::equal(other.shape.begin(), other.shape.begin() + other.rank, view.shape.begin()),
      kShape, "{}: {} is {}, expected {}", op_, name, view.describe(), expected.describe());
  layout(name, view, Layout::kContiguous);
}

void OpChecker::require(bool holds, const char* name, const TensorView& view, const char* rule) const {
  FERRY_CHECK(holds, kShape, "{}: {} is {}, expected {}", op_, name, view ? view.describe() : "absent", rule);
}

void OpChecker::check_aliasing(const std::vector<Named>& tensors, std::initializer_list<Names> allowed) const {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const Named& a = tensors[i];
      const Named& b = tensors[j];
      if ((!a.written && !b.written) || !overlap(a.view, b.view)) continue;
      const bool may_be_one = std::any_of(allowed.begin(), allowed.end(), [&](const Names& names) {
        const std::string_view first = names.first, second = names.second;
        return (first == a.name && second == b.name) || (first == b.name && second == a.name);
      });
      FERRY_CHECK(may_be_one, kShape, "{}: {} overlaps {}, expected separate memory", op_, a.name, b.name);
      FERRY_CHECK(same_view(a.view, b.view), kShape,
                  "{}: {} overlaps {} in part, expected the same view or separate memory", op_, a.name, b.name);
    }
  }
}

}  // namespace ferry
