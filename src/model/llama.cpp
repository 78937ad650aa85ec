// SPDX-License-Identifier: Apache-2.0
// The ops of a Llama layer, forward, recomputed and backward.
#include "model/llama.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/int_math.h"
#include "model/layer_parts.h"
#include "model/parameter_table.h"

namespace ferry {
namespace {

/// Query, key and value heads inside the fused buffer.
struct Heads {
  TensorView q;   // (B, T, H, D)
  TensorView k;   // (B, T, G, D)
  TensorView v;   // (B, T, G, D)
  TensorView qk;  // (B, T, H+G, D), what RoPE turns; absent where q and k lie apart
};

/// Heads [first, first + count) of (B, T, heads, D).
TensorView head_range(const TensorView& heads, std::int64_t first, std::int64_t count) {
  TensorView view = heads;
  view.data =
      static_cast<std::byte*>(view.data) + first * view.stride[2] * static_cast<std::int64_t>(size_of(view.dtype));
  view.shape[2] = count;
  return view;
}

Heads split_heads(const LlamaShape& s, const TensorView& fused) {
  const TensorView heads = fused.reshape({s.B, s.T, s.H + 2 * s.G, s.D});
  return {.q = head_range(heads, 0, s.H),
          .k = head_range(heads, s.H, s.G),
          .v = head_range(heads, s.H + s.G, s.G),
          .qk = head_range(heads, 0, s.H + s.G)};
}

float attention_scale(const LlamaShape& s) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(s.D))); }

RmsNormForward norm(const LlamaShape& s, const TensorView& x, const TensorView& weight, const TensorView& y,
                    const TensorView& rstd) {
  return {.x = x, .addend = {}, .sum = {}, .weight = weight, .y = y, .rstd = rstd, .eps = s.eps};
}

/// Queries, keys and values of the rows, from work.norm.
Heads project_heads(const LayerCall& call) {
  const Heads heads = split_heads(call.shape, call.kept.qkv);
  call.context.run(forward_product(call.work.norm, call.weights.qkv, call.kept.qkv));
  call.context.run(Rope{.x = heads.qk, .cos = call.rope.cos, .sin = call.rope.sin});
  return heads;
}

/// The same with keys and values as the last of the cache; those that it returns are of all positions.
Heads project_into_cache(const LayerCall& call) {
  const LlamaShape& s = call.shape;
  const std::int64_t n_positions = call.cache.shape[0];
  const std::int64_t q_width = s.H * s.D;
  const std::int64_t kv_width = 2 * s.G * s.D;
  const auto keys_and_values = [&s](const TensorView& rows) { return rows.reshape({1, rows.shape[0], 2 * s.G, s.D}); };
  const TensorView q(call.kept.qkv.data, call.kept.qkv.dtype, {s.T, q_width});
  const TensorView fresh = call.cache.rows(n_positions - s.T, s.T);
  call.context.run(forward_product(call.work.norm, call.weights.qkv.rows(0, q_width), q));
  call.context.run(forward_product(call.work.norm, call.weights.qkv.rows(q_width, kv_width), fresh));
  const TensorView q_heads = q.reshape({1, s.T, s.H, s.D});
  const TensorView fresh_keys = head_range(keys_and_values(fresh), 0, s.G);
  for (const TensorView& x : {q_heads, fresh_keys}) {
    call.context.run(Rope{.x = x, .cos = call.rope.cos, .sin = call.rope.sin});
  }
  const TensorView all = keys_and_values(call.cache);
  return {.q = q_heads, .k = head_range(all, 0, s.G), .v = head_range(all, s.G, s.G), .qk = {}};
}

AttentionForward attention_op(const LlamaShape& s, const Heads& heads, const LayerKept& kept) {
  return {.q = heads.q,
          .k = heads.k,
          .v = heads.v,
          .o = kept.attn.reshape({s.B, s.T, s.H, s.D}),
          .lse = kept.lse,
          .scale = attention_scale(s)};
}

AttentionBackward attention_backward_op(const LlamaShape& s, const Heads& heads, const Heads& d_heads,
                                        const LayerKept& kept, const TensorView& d_attn) {
  return {.q = heads.q,
          .k = heads.k,
          .v = heads.v,
          .o = kept.attn.reshape({s.B, s.T, s.H, s.D}),
          .lse = kept.lse,
          .d_o = d_attn.reshape({s.B, s.T, s.H, s.D}),
          .d_q = d_heads.q,
          .d_k = d_heads.k,
          .d_v = d_heads.v,
          .scale = attention_scale(s)};
}

/// Up to the input of the MLP, and its norm.
void attention_forward(const LayerCall& call) {
  const auto& [context, s, rope, weights, x, kept, work, cut, cache] = call;
  context.run(norm(s, x, weights.input_norm, work.norm, kept.rstd_in));
  const Heads heads = cache ? project_into_cache(call) : project_heads(call);
  context.run(attention_op(s, heads, kept));
  context.run(forward_product(kept.attn, weights.out_proj, work.proj));
  context.run(RmsNormForward{.x = x,
                             .addend = work.proj,
                             .sum = kept.x_mid,
                             .weight = weights.post_norm,
                             .y = work.norm,
                             .rstd = kept.rstd_mid,
                             .eps = s.eps});
}

/// x_mid = x + attention(norm(x) qkv^T) out_proj^T
void attention_backward(const LayerCall& call, const TensorView& d_stream, const LayerGradients& gradients) {
  const auto& [context, s, rope, weights, x, kept, work, cut, cache] = call;
  const auto& [sums, rounded, add, complete] = gradients;
  context.run(weight_gradient(d_stream, kept.attn, sums.out_proj, add));
  context.run(input_gradient(d_stream, weights.out_proj, work.d_attn));
  const Heads heads = split_heads(s, kept.qkv);
  const Heads d_heads = split_heads(s, work.d_qkv);
  context.run(attention_backward_op(s, heads, d_heads, kept, work.d_attn));
  context.run(Rope{.x = d_heads.qk, .cos = rope.cos, .sin = rope.sin, .inverse = true});
  context.run(norm(s, x, weights.input_norm, work.norm, kept.rstd_in));
  context.run(weight_gradient(work.d_qkv, work.norm, sums.qkv, add));
  context.run(input_gradient(work.d_qkv, weights.qkv, work.d_norm));
  context.run(RmsNormBackward{.d_y = work.d_norm,
                              .x = x,
                              .weight = weights.input_norm,
                              .rstd = kept.rstd_in,
                              .d_residual = d_stream,
                              .d_x = d_stream,
                              .d_weight = sums.input_norm,
                              .accumulate = add});
  if (!complete) return;
  round_once(context, sums.out_proj, rounded.out_proj);
  round_once(context, sums.qkv, rounded.qkv);
  round_once(context, sums.input_norm, rounded.input_norm);
}

struct AttentionOps {
  AttentionForward forward;
  AttentionBackward backward;
};

/// To ask about, not to run: all data is one aligned place.
AttentionOps attention_ops(const LlamaShape& s, DType dtype) {
  alignas(Buffer::kAlignment) static std::byte nowhere[Buffer::kAlignment];
  LayerKept kept;
  kept.qkv = TensorView(nowhere, dtype, {s.N(), s.qkv_width()});
  kept.attn = TensorView(nowhere, dtype, {s.N(), s.H * s.D});
  kept.lse = TensorView(nowhere, DType::kF32, {s.B, s.H, s.T});
  const Heads heads = split_heads(s, kept.qkv);
  return {attention_op(s, heads, kept), attention_backward_op(s, heads, heads, kept, kept.attn)};
}

}  // namespace

void OpContext::run(const Op& op) const {
  if (recorded != nullptr) {
    recorded->push_back(op);
  } else {
    backend->enqueue(stream, op, scratch);
  }
}

LlamaShape::LlamaShape(const ModelConfig& config, std::int64_t batch_size, std::int64_t seq_len)
    : B(batch_size),
      T(seq_len),
      C(config.hidden_size),
      F(config.intermediate_size),
      H(config.n_heads),
      G(config.n_kv_heads),
      D(config.head_dim),
      V(config.vocab_size),
      eps(static_cast<float>(config.rms_norm_eps)) {}

LayerTensors layer_tensors(const LlamaShape& s, DType dtype, void* data) {
  std::int64_t offset = 0;
  const auto take = [&](std::int64_t rows, std::int64_t columns) {
    constexpr std::int64_t kAlign = ParameterTable::kAlignElems;
    offset = round_up(offset, kAlign);
    void* start = static_cast<std::byte*>(data) + offset * static_cast<std::int64_t>(size_of(dtype));
    offset += rows * columns;
    return columns == 1 ? TensorView(start, dtype, {rows}) : TensorView(start, dtype, {rows, columns});
  };
  LayerTensors tensors;
  tensors.input_norm = take(s.C, 1);
  tensors.qkv = take(s.qkv_width(), s.C);
  tensors.out_proj = take(s.C, s.H * s.D);
  tensors.post_norm = take(s.C, 1);
  tensors.gate_up = take(2 * s.F, s.C);
  tensors.down = take(s.C, s.F);
  return tensors;
}

void layer_recompute(const LayerCall& call) {
  attention_forward(call);
  if (!call.mlp_cut.cuts()) mlp_gate_up(call);
}

void layer_forward(const LayerCall& call, const TensorView& x_out) {
  attention_forward(call);
  mlp_forward(call, x_out);
}

void layer_backward(const LayerCall& call, const TensorView& d_stream, const LayerGradients& gradients,
                    bool norm_is_fresh) {
  const auto& [context, s, rope, weights, x, kept, work, cut, cache] = call;
  if (!norm_is_fresh) context.run(norm(s, kept.x_mid, weights.post_norm, work.norm, kept.rstd_mid));
  mlp_backward(call, d_stream, gradients);
  attention_backward(call, d_stream, gradients);
}

void round_once(const OpContext& context, const TensorView& x, const TensorView& y) {
  if (x.data != y.data) context.run(Cast{.x = x, .y = y});
}

std::string describe_attention(const LlamaShape& shape, DType dtype, const ScratchSizes& backend) {
  const AttentionOps ops = attention_ops(shape, dtype);
  const std::string forward = backend.what_serves(ops.forward);
  const std::string backward = backend.what_serves(ops.backward);
  if (forward == backward) return "forward and backward by " + forward;
  return fmt::format("forward by {}; backward by {}", forward, backward);
}

bool attention_scratch_is_exact(const LlamaShape& shape, DType dtype, const ScratchSizes& backend) {
  const AttentionOps ops = attention_ops(shape, dtype);
  return backend.is_exact(ops.forward) && backend.is_exact(ops.backward);
}

}  // namespace ferry
