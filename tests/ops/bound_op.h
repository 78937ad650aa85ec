// SPDX-License-Identifier: Apache-2.0
// An op together with tensors for its arguments, found by the names that its visit() lists.
#pragma once

#include <map>
#include <string>
#include <type_traits>
#include <utility>

#include "backend/ops.h"
#include "ops/test_tensor.h"

namespace ferry::test {

using Tensors = std::map<std::string, TestTensor>;

/// Points every tensor of `args` that `tensors` has at it. The visited views are the struct's own members.
template <class Args>
void bind_tensors(Args& args, const Tensors& tensors) {
  std::as_const(args).visit([&](Access, const char* name, const TensorView& view) {
    const auto found = tensors.find(name);
    if (found != tensors.end()) const_cast<TensorView&>(view) = found->second.view();
  });
}

/// Whether rows of this tensor of the op may have gaps ("strided" in the contract).
inline bool may_be_strided(const std::string& op, const std::string& name) {
  if (op == Matmul::kName || op == SwigluForward::kName || op == SwigluBackward::kName) return true;
  if (op == AttentionForward::kName || op == AttentionBackward::kName) return name != "lse";
  if (op == Rope::kName) return name == "x";
  return name == "logits";
}

}  // namespace ferry::test
