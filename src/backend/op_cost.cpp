// SPDX-License-Identifier: Apache-2.0
// The "Cost" lines of ops.h as numbers.
#include "backend/op_cost.h"

#include <type_traits>

namespace ferry {
namespace {

/// B * H * D * (pairs of a query and a key that it sees).
template <class Attention>
double visible_work(const Attention& op) {
  const auto t = static_cast<double>(op.q.shape[1]);
  const auto s = static_cast<double>(op.k.shape[1]);
  const double pairs = t * (s - t) + t * (t + 1) / 2;
  return static_cast<double>(op.q.shape[0] * op.q.shape[2] * op.q.shape[3]) * pairs;
}

double size(const TensorView& view) { return static_cast<double>(view.size_bytes()); }

}  // namespace

double op_flop(const Op& op) {
  if (const auto* matmul = std::get_if<Matmul>(&op)) {
    const std::int64_t depth = matmul->transpose_a ? matmul->a.shape[0] : matmul->a.shape[1];
    return 2.0 * static_cast<double>(matmul->d.elems()) * static_cast<double>(depth);
  }
  if (const auto* forward = std::get_if<AttentionForward>(&op)) return 4 * visible_work(*forward);
  if (const auto* backward = std::get_if<AttentionBackward>(&op)) return 10 * visible_work(*backward);
  return 0;
}

double op_bytes(const Op& op) {
  if (const auto* forward = std::get_if<EmbeddingForward>(&op)) return size(forward->ids) + 2 * size(forward->y);
  if (const auto* backward = std::get_if<EmbeddingBackward>(&op)) {
    return size(backward->ids) + size(backward->order) + 3 * size(backward->d_y);
  }
  double total = 0;
  const auto add = [&total](Access access, const char*, const TensorView& view) {
    if (view) total += access == Access::kReadWrite ? 2 * size(view) : size(view);
  };
  std::visit([&add](const auto& each) { each.visit(add); }, op);
  return total;
}

}  // namespace ferry
