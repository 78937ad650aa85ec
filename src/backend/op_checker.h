// SPDX-License-Identifier: Apache-2.0
// The vocabulary in which ops_check.cpp states the contracts of ops; every message has the same form.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "backend/ops.h"
#include "backend/overlap.h"
#include "core/error.h"

namespace ferry {

enum class Layout {
  kContiguous,
  kStrided,  // the last dimension is contiguous, the others may have gaps
};

/// All members throw Error{kShape | kDType}: "rmsnorm_forward: weight is f32 (64), expected bf16 (128)".
class OpChecker {
 public:
  using Names = std::pair<const char*, const char*>;

  explicit OpChecker(const char* op) : op_(op) {}

  /// A tensor that sets extents for others: bf16 or f32; `dims` names its extents, "N, C".
  void floating(const char* name, const TensorView& view, const char* dims, Layout layout = Layout::kContiguous) const;
  /// The same for i32.
  void indices(const char* name, const TensorView& view, const char* dims) const;
  /// A contiguous tensor of any shape, of any dtype or bf16 | f32.
  void any(const char* name, const TensorView& view) const;
  void any_floating(const char* name, const TensorView& view) const;
  /// A tensor whose dtype and extents follow from others.
  void matches(const char* name, const TensorView& view, DType dtype, std::initializer_list<std::int64_t> shape,
               Layout layout = Layout::kContiguous) const;
  /// The same as another contiguous tensor of any rank, in `dtype`.
  void same_shape(const char* name, const TensorView& view, DType dtype, const TensorView& other) const;

  /// Any other rule: `rule` says what is expected of `name`.
  void require(bool holds, const char* name, const TensorView& view, const char* rule) const;

  /// What the op writes overlaps nothing else, except pairs in `allowed`, which may be one and the same view.
  template <class Args>
  void aliasing(const Args& args, std::initializer_list<Names> allowed) const {
    std::vector<Named> tensors;
    args.visit([&](Access access, const char* name, const TensorView& view) {
      if (view) tensors.push_back({access != Access::kRead, name, view});
    });
    check_aliasing(tensors, allowed);
  }

 private:
  struct Named {
    bool written;
    const char* name;
    TensorView view;
  };

  void present(const char* name, const TensorView& view, const std::string& expected) const;
  void extents(const char* name, const TensorView& view, const std::string& expected) const;
  void layout(const char* name, const TensorView& view, Layout wanted) const;
  void check_aliasing(const std::vector<Named>& tensors, std::initializer_list<Names> allowed) const;

  const char* op_;
};

}  // namespace ferry
