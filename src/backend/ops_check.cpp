// SPDX-License-Identifier: Apache-2.0
// The contract of every op as checks: one function per args struct of backend/ops.h, in its order.
#include "backend/op_checker.h"
#include "backend/ops.h"

namespace ferry {
namespace {

constexpr Layout kStrided = Layout::kStrided;

template <class Args>
OpChecker checker(const Args&) {
  return OpChecker(Args::kName);
}

void check(const EmbeddingForward& op) {
  const auto must = checker(op);
  must.indices("ids", op.ids, "N");
  must.floating("table", op.table, "V, C");
  must.matches("y", op.y, op.table.dtype, {op.ids.shape[0], op.table.shape[1]});
  must.aliasing(op, {});
}

void check(const EmbeddingBackward& op) {
  const auto must = checker(op);
  must.indices("ids", op.ids, "N");
  must.floating("d_table", op.d_table, "V, C");
  must.matches("order", op.order, DType::kI32, {op.ids.shape[0]});
  must.matches("d_y", op.d_y, op.d_table.dtype, {op.ids.shape[0], op.d_table.shape[1]});
  must.aliasing(op, {});
}

void check(const RmsNormForward& op) {
  const auto must = checker(op);
  must.floating("x", op.x, "N, C");
  const auto dtype = op.x.dtype;
  const auto rows = op.x.shape[0], width = op.x.shape[1];
  must.require(bool(op.addend) == bool(op.sum), "sum", op.sum, "addend and sum both or neither");
  if (op.addend) must.matches("addend", op.addend, dtype, {rows, width});
  if (op.sum) must.matches("sum", op.sum, dtype, {rows, width});
  must.matches("weight", op.weight, dtype, {width});
  must.matches("y", op.y, dtype, {rows, width});
  must.matches("rstd", op.rstd, DType::kF32, {rows});
  must.aliasing(op, {{"y", "x"}, {"y", "addend"}, {"sum", "x"}, {"sum", "addend"}});
}

void check(const RmsNormBackward& op) {
  const auto must = checker(op);
  must.floating("x", op.x, "N, C");
  const auto dtype = op.x.dtype;
  const auto rows = op.x.shape[0], width = op.x.shape[1];
  must.matches("d_y", op.d_y, dtype, {rows, width});
  must.matches("weight", op.weight, dtype, {width});
  must.matches("rstd", op.rstd, DType::kF32, {rows});
  if (op.d_residual) must.matches("d_residual", op.d_residual, dtype, {rows, width});
  must.matches("d_x", op.d_x, dtype, {rows, width});
  const auto d_weight_dtype = op.d_weight && op.d_weight.dtype == DType::kF32 ? DType::kF32 : dtype;
  must.matches("d_weight", op.d_weight, d_weight_dtype, {width});
  FERRY_CHECK(!op.accumulate || d_weight_dtype == DType::kF32, kDType,
              "{}: d_weight is {}, expected f32 where it accumulates", op.kName, op.d_weight.describe());
  must.aliasing(op, {{"d_x", "d_y"}, {"d_x", "d_residual"}});
}

void check(const Matmul& op) {
  const auto must = checker(op);
  must.floating("a", op.a, op.transpose_a ? "K, M" : "M, K", kStrided);
  must.floating("b", op.b, op.transpose_b ? "N, K" : "K, N", kStrided);
  const auto m = op.a.shape[op.transpose_a ? 1 : 0], k = op.a.shape[op.transpose_a ? 0 : 1];
  const auto n = op.b.shape[op.transpose_b ? 0 : 1];
  if (op.transpose_b) {
    must.matches("b", op.b, op.a.dtype, {n, k}, kStrided);
  } else {
    must.matches("b", op.b, op.a.dtype, {k, n}, kStrided);
  }
  must.matches("d", op.d, op.d.dtype == DType::kF32 ? DType::kF32 : op.a.dtype, {m, n}, kStrided);
  if (op.c) must.matches("c", op.c, op.d.dtype, {m, n}, kStrided);
  must.aliasing(op, {{"c", "d"}});
}

void check(const Rope& op) {
  const auto must = checker(op);
  must.floating("x", op.x, "B, T, heads, D", kStrided);
  must.require(op.x.shape[3] % 2 == 0, "x", op.x, "an even last extent");
  must.matches("cos", op.cos, DType::kF32, {op.x.shape[1], op.x.shape[3] / 2});
  must.matches("sin", op.sin, DType::kF32, {op.x.shape[1], op.x.shape[3] / 2});
  must.aliasing(op, {});
}

/// What forward and backward of attention share.
template <class Attention>
void check_attention(const OpChecker& must, const Attention& op) {
  must.floating("q", op.q, "B, T, H, D", kStrided);
  must.floating("k", op.k, "B, S, G, D", kStrided);
  const auto batch = op.q.shape[0], queries = op.q.shape[1], heads = op.q.shape[2], width = op.q.shape[3];
  const auto keys = op.k.shape[1], groups = op.k.shape[2];
  must.matches("k", op.k, op.q.dtype, {batch, keys, groups, width}, kStrided);
  must.require(heads % groups == 0, "k", op.k, "a number of heads that divides the one of q");
  must.require(keys >= queries, "k", op.k, "at least as many positions as q");
  must.matches("v", op.v, op.q.dtype, {batch, keys, groups, width}, kStrided);
  must.matches("o", op.o, op.q.dtype, {batch, queries, heads, width}, kStrided);
  must.matches("lse", op.lse, DType::kF32, {batch, heads, queries});
}

void check(const AttentionForward& op) {
  const auto must = checker(op);
  check_attention(must, op);
  must.aliasing(op, {});
}

void check(const AttentionBackward& op) {
  const auto must = checker(op);
  check_attention(must, op);
  const auto batch = op.q.shape[0], queries = op.q.shape[1], heads = op.q.shape[2], width = op.q.shape[3];
  const auto keys = op.k.shape[1], groups = op.k.shape[2];
  must.matches("d_o", op.d_o, op.q.dtype, {batch, queries, heads, width}, kStrided);
  must.matches("d_q", op.d_q, op.q.dtype, {batch, queries, heads, width}, kStrided);
  must.matches("d_k", op.d_k, op.q.dtype, {batch, keys, groups, width}, kStrided);
  must.matches("d_v", op.d_v, op.q.dtype, {batch, keys, groups, width}, kStrided);
  must.aliasing(op, {});
}

void check(const SwigluForward& op) {
  const auto must = checker(op);
  must.floating("gate", op.gate, "N, F", kStrided);
  const auto rows = op.gate.shape[0], width = op.gate.shape[1];
  must.matches("up", op.up, op.gate.dtype, {rows, width}, kStrided);
  must.matches("y", op.y, op.gate.dtype, {rows, width}, kStrided);
  must.aliasing(op, {{"y", "gate"}, {"y", "up"}});
}

void check(const SwigluBackward& op) {
  const auto must = checker(op);
  must.floating("d_y", op.d_y, "N, F", kStrided);
  const auto rows = op.d_y.shape[0], width = op.d_y.shape[1];
  must.matches("gate", op.gate, op.d_y.dtype, {rows, width}, kStrided);
  must.matches("up", op.up, op.d_y.dtype, {rows, width}, kStrided);
  must.matches("d_gate", op.d_gate, op.d_y.dtype, {rows, width}, kStrided);
  must.matches("d_up", op.d_up, op.d_y.dtype, {rows, width}, kStrided);
  if (op.y) must.matches("y", op.y, op.d_y.dtype, {rows, width}, kStrided);
  must.aliasing(op, {{"d_gate", "gate"}, {"d_up", "up"}, {"y", "d_y"}});
}

void check_first_token(const char* name, std::int64_t first_token) {
  FERRY_CHECK(first_token >= 0, kShape, "{}: first_token is {}, expected 0 or more", name, first_token);
}

void check(const CrossEntropyChunk& op) {
  const auto must = checker(op);
  must.floating("logits", op.logits, "N, Vc", kStrided);
  must.matches("targets", op.targets, DType::kI32, {op.logits.shape[0]});
  must.matches("lse", op.lse, DType::kF32, {op.logits.shape[0]});
  must.matches("target_logit", op.target_logit, DType::kF32, {op.logits.shape[0]});
  check_first_token(op.kName, op.first_token);
  must.aliasing(op, {});
}

void check(const CrossEntropyLoss& op) {
  const auto must = checker(op);
  must.indices("targets", op.targets, "N");
  must.matches("lse", op.lse, DType::kF32, {op.targets.shape[0]});
  must.matches("target_logit", op.target_logit, DType::kF32, {op.targets.shape[0]});
  must.matches("loss", op.loss, DType::kF32, {1});
  must.aliasing(op, {});
}

void check(const CrossEntropyBackward& op) {
  const auto must = checker(op);
  must.floating("logits", op.logits, "N, Vc", kStrided);
  must.matches("targets", op.targets, DType::kI32, {op.logits.shape[0]});
  must.matches("lse", op.lse, DType::kF32, {op.logits.shape[0]});
  check_first_token(op.kName, op.first_token);
  must.aliasing(op, {});
}

void check(const Cast& op) {
  const auto must = checker(op);
  must.any_floating("x", op.x);
  must.any_floating("y", op.y);
  must.same_shape("y", op.y, op.y.dtype, op.x);
  must.aliasing(op, {});
}

void check(const Fill& op) { checker(op).any("x", op.x); }

void check(const SumOfSquares& op) {
  const auto must = checker(op);
  must.any_floating("x", op.x);
  if (op.skip) {
    must.floating("x", op.x, "R, C");
    must.matches("skip", op.skip, DType::kI32, {op.x.shape[0]});
  }
  must.matches("y", op.y, DType::kF32, {1});
  must.aliasing(op, {});
}

void check(const Adamw& op) {
  const auto must = checker(op);
  must.floating("weight", op.weight, "n");
  const auto n = op.weight.shape[0];
  const bool bf16 = op.weight.dtype == DType::kBf16;
  must.require(bf16 || !op.weight_low, "weight_low", op.weight_low, "none beside f32 weights");
  if (op.weight_low) must.matches("weight_low", op.weight_low, DType::kI16, {n});
  const bool any_state = bf16 && op.weight_low;
  if (any_state) must.floating("m", op.m, "n");
  const auto state = any_state ? op.m.dtype : bf16 ? DType::kBf16 : DType::kF32;
  must.matches("m", op.m, state, {n});
  must.matches("v", op.v, state, {n});
  must.matches("gradient", op.gradient, op.weight.dtype, {n});
  must.aliasing(op, {});
}

}  // namespace

void check_op(const Op& op) {
  std::visit([](const auto& args) { check(args); }, op);
}

const char* op_name(const Op& op) {
  return std::visit([](const auto& args) { return args.kName; }, op);
}

}  // namespace ferry
