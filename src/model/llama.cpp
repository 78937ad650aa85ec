// SPDX-License-Identifier: Apache-2.0
// The ops of a Llama layer, forward, recomputed and backward.
#include "model/llama.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "model/parameter_table.h"

namespace ferry {
namespace {

/// Query, key and value heads inside the fused buffer.
struct Heads {
  TensorView q;   // (B, T, H, D)
  TensorView k;   // (B, T, G, D)
  TensorView v;   // (B, T, G, D)
  TensorView qk;  // (B, T, H+G, D), what RoPE turns
};

TensorView head_range(const LlamaShape& s, const TensorView& fused, std::int64_t first, std::int64_t count) {
  TensorView view = fused.reshape({s.B, s.T, s.H + 2 * s.G, s.D});
  view.data = static_cast<std::byte*>(view.data) + first * s.D * static_cast<std::int64_t>(size_of(view.dtype));
  view.shape[2] = count;
  return view;
}

Heads split_heads(const LlamaShape& s, const TensorView& fused) {
  return {.q = head_range(s, fused, 0, s.H),
          .k = head_range(s, fused, s.H, s.G),
          .v = head_range(s, fused, s.H + s.G, s.G),
          .qk = head_range(s, fused, 0, s.H + s.G)};
}

float attention_scale(const LlamaShape& s) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(s.D))); }

Matmul forward_product(const TensorView& x, const TensorView& weight, const TensorView& y) {
  return {.a = x, .b = weight, .c = {}, .d = y, .transpose_a = false, .transpose_b = true};
}

Matmul input_gradient(const TensorView& d_y, const TensorView& weight, const TensorView& d_x) {
  return {.a = d_y, .b = weight, .c = {}, .d = d_x};
}

Matmul weight_gradient(const TensorView& d_y, const TensorView& x, const TensorView& d_weight) {
  return {.a = d_y, .b = x, .c = {}, .d = d_weight, .transpose_a = true, .transpose_b = false};
}

RmsNormForward norm(const LlamaShape& s, const TensorView& x, const TensorView& weight, const TensorView& y,
                    const TensorView& rstd) {
  return {.x = x, .addend = {}, .sum = {}, .weight = weight, .y = y, .rstd = rstd, .eps = s.eps};
}

SwigluForward swiglu(const LlamaShape& s, const TensorView& gate_up, const TensorView& act) {
  return {.gate = gate_up.columns(0, s.F), .up = gate_up.columns(s.F, s.F), .y = act};
}

}  // namespace

void OpContext::run(const Op& op) const {
  if (measured_bytes != nullptr) {
    *measured_bytes = std::max(*measured_bytes, backend.scratch_bytes(op));
  } else if (recorded != nullptr) {
    recorded->push_back(op);
  } else {
    backend.enqueue(stream, op, scratch);
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
    offset = (offset + kAlign - 1) / kAlign * kAlign;
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

void layer_recompute(const OpContext& context, const LlamaShape& s, const RopeTable& rope, const LayerTensors& weights,
                     const TensorView& x, const LayerKept& kept, const LayerWork& work) {
  context.run(norm(s, x, weights.input_norm, work.norm, kept.rstd_in));
  context.run(forward_product(work.norm, weights.qkv, kept.qkv));
  const Heads heads = split_heads(s, kept.qkv);
  context.run(Rope{.x = heads.qk, .cos = rope.cos, .sin = rope.sin});
  context.run(AttentionForward{.q = heads.q,
                               .k = heads.k,
                               .v = heads.v,
                               .o = kept.attn.reshape({s.B, s.T, s.H, s.D}),
                               .lse = kept.lse,
                               .scale = attention_scale(s)});
  context.run(forward_product(kept.attn, weights.out_proj, work.proj));
  context.run(RmsNormForward{.x = x,
                             .addend = work.proj,
                             .sum = kept.x_mid,
                             .weight = weights.post_norm,
                             .y = work.norm,
                             .rstd = kept.rstd_mid,
                             .eps = s.eps});
  context.run(forward_product(work.norm, weights.gate_up, kept.gate_up));
}

void layer_forward(const OpContext& context, const LlamaShape& s, const RopeTable& rope, const LayerTensors& weights,
                   const TensorView& x, const TensorView& x_out, const LayerKept& kept, const LayerWork& work) {
  layer_recompute(context, s, rope, weights, x, kept, work);
  context.run(swiglu(s, kept.gate_up, work.act));
  Matmul down = forward_product(work.act, weights.down, x_out);
  down.c = kept.x_mid;
  context.run(down);
}

void layer_backward(const OpContext& context, const LlamaShape& s, const RopeTable& rope, const LayerTensors& weights,
                    const TensorView& x, const LayerKept& kept, const LayerWork& work, const TensorView& d_stream,
                    const LayerTensors& d_weights, bool norm_is_fresh) {
  // MLP: x_out = x_mid + swiglu(norm(x_mid) gate_up^T) down^T
  context.run(swiglu(s, kept.gate_up, work.act));
  context.run(weight_gradient(d_stream, work.act, d_weights.down));
  context.run(input_gradient(d_stream, weights.down, work.d_act));
  const TensorView gate = kept.gate_up.columns(0, s.F);
  const TensorView up = kept.gate_up.columns(s.F, s.F);
  context.run(SwigluBackward{.d_y = work.d_act, .gate = gate, .up = up, .d_gate = gate, .d_up = up});
  if (!norm_is_fresh) context.run(norm(s, kept.x_mid, weights.post_norm, work.norm, kept.rstd_mid));
  context.run(weight_gradient(kept.gate_up, work.norm, d_weights.gate_up));
  context.run(input_gradient(kept.gate_up, weights.gate_up, work.d_norm));
  context.run(RmsNormBackward{.d_y = work.d_norm,
                              .x = kept.x_mid,
                              .weight = weights.post_norm,
                              .rstd = kept.rstd_mid,
                              .d_residual = d_stream,
                              .d_x = d_stream,
                              .d_weight = d_weights.post_norm});
  // Attention: x_mid = x + attention(norm(x) qkv^T) out_proj^T
  context.run(weight_gradient(d_stream, kept.attn, d_weights.out_proj));
  context.run(input_gradient(d_stream, weights.out_proj, work.d_attn));
  const Heads heads = split_heads(s, kept.qkv);
  const Heads d_heads = split_heads(s, work.d_qkv);
  context.run(AttentionBackward{.q = heads.q,
                                .k = heads.k,
                                .v = heads.v,
                                .o = kept.attn.reshape({s.B, s.T, s.H, s.D}),
                                .lse = kept.lse,
                                .d_o = work.d_attn.reshape({s.B, s.T, s.H, s.D}),
                                .d_q = d_heads.q,
                                .d_k = d_heads.k,
                                .d_v = d_heads.v,
                                .scale = attention_scale(s)});
  context.run(Rope{.x = d_heads.qk, .cos = rope.cos, .sin = rope.sin, .inverse = true});
  context.run(norm(s, x, weights.input_norm, work.norm, kept.rstd_in));
  context.run(weight_gradient(work.d_qkv, work.norm, d_weights.qkv));
  context.run(input_gradient(work.d_qkv, weights.qkv, work.d_norm));
  context.run(RmsNormBackward{.d_y = work.d_norm,
                              .x = x,
                              .weight = weights.input_norm,
                              .rstd = kept.rstd_in,
                              .d_residual = d_stream,
                              .d_x = d_stream,
                              .d_weight = d_weights.input_norm});
}

}  // namespace ferry
