// SPDX-License-Identifier: Apache-2.0
// One Llama layer and the head as sequences of backend ops, on views that the caller placed.
// Source: Touvron et al. 2023, arXiv:2302.13971; layouts and names of transformers' LlamaForCausalLM.
//
// Letters (docs/glossary.md): B batch, T sequence, N = B*T rows, C width, F FFN width, H query heads, G key/value
// heads, D head width, V vocabulary, L layers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "config/model_config.h"

namespace ferry {

/// Where ops go: a stream of a backend, and the scratch that they share on it.
struct OpContext {
  Backend* backend = nullptr;
  StreamRef stream = nullptr;
  Scratch scratch;
  std::vector<Op>* recorded = nullptr;  // set: nothing runs, the ops are appended

  void run(const Op& op) const;
};

/// Extents of one batch through one model.
struct LlamaShape {
  std::int64_t B = 0, T = 0, C = 0, F = 0, H = 0, G = 0, D = 0, V = 0;
  float eps = 1e-5F;

  LlamaShape(const ModelConfig& config, std::int64_t batch_size, std::int64_t seq_len);
  std::int64_t N() const { return B * T; }
  std::int64_t qkv_width() const { return (H + 2 * G) * D; }
};

/// cos and sin of every (position, frequency), f32. Source: arXiv:2104.09864; rope_scaling as in transformers.
struct RopeTable {
  TensorView cos;  // (T, D/2)
  TensorView sin;  // (T, D/2)
};

/// Fills host tables for positions [0, seq_len): `cos`, `sin` hold seq_len * D/2 f32 each. Angles are computed in f64.
void fill_rope_table(const ModelConfig& config, std::int64_t seq_len, float* cos, float* sin);

/// The weights of a layer, or their gradients: views into one segment.
struct LayerTensors {
  TensorView input_norm;  // (C)
  TensorView qkv;         // ((H+2G)*D, C)
  TensorView out_proj;    // (C, H*D)
  TensorView post_norm;   // (C)
  TensorView gate_up;     // (2F, C)
  TensorView down;        // (C, F)
};

/// Views into a layer's segment that starts at `data`; offsets as in ParameterTable.
LayerTensors layer_tensors(const LlamaShape& shape, DType dtype, void* data);

/// Cuts the MLP, so that its activations exist for one part at a time: some rows, or some features (columns of F).
struct MlpCut {
  enum class By { kNone, kTokens, kFeatures };
  By by = By::kNone;
  std::int64_t size = 0;  // of a part; the last may be smaller

  bool cuts() const { return by != By::kNone; }
};

/// What backward needs of a layer's forward beside its input.
struct LayerKept {
  TensorView qkv;       // (N, (H+2G)*D), after RoPE
  TensorView attn;      // (N, H*D)
  TensorView lse;       // (B, H, T) f32
  TensorView x_mid;     // (N, C), input of the MLP's norm
  TensorView gate_up;   // (N, 2F); of one part where the MLP is cut: n rows or 2n columns
  TensorView rstd_in;   // (N) f32
  TensorView rstd_mid;  // (N) f32
};

/// Working space of a layer; see offload/step_buffers.cpp for which of them live at the same time.
struct LayerWork {
  TensorView norm;     // (N, C), output of either norm
  TensorView proj;     // (N, C), attention's output projection
  TensorView act;      // (N, F), or one part; in the backward pass its gradient, too
  TensorView mlp_sum;  // (N, C) f32, the sum over parts of features; not used by a model in f32
  TensorView d_norm;   // (N, C)
  TensorView d_attn;   // (N, H*D)
  TensorView d_qkv;    // (N, (H+2G)*D)
};

/// What the passes of one layer over one batch share.
struct LayerCall {
  const OpContext& context;
  LlamaShape shape;
  RopeTable rope;
  LayerTensors weights;
  TensorView x;  // (N, C), the layer's input
  LayerKept kept;
  LayerWork work;
  MlpCut mlp_cut;
  /// Of a sequence that grows: keys (after RoPE), then values of its S positions, these rows' the last ones. B is 1.
  /// Absent: the rows are whole sequences.
  TensorView cache;  // (S, 2*G*D)
};

/// Fills kept, and x_out (N, C) = layer(x). x_out may not be x. Afterwards work.norm holds norm(x_mid). With a cache
/// its first S - N positions are read and the others written, kept.qkv holds the queries alone, and there is no
/// backward pass.
void layer_forward(const LayerCall& call, const TensorView& x_out);

/// Fills kept from x again: the forward pass without the down projection, and without gate and up where the MLP is cut,
/// since backward makes those part by part. Afterwards work.norm holds norm(x_mid).
void layer_recompute(const LayerCall& call);

/// Where a layer's weight gradients go. A tensor whose gradient takes several products (micro-batches, or parts of the
/// MLP) is summed in f32 and rounded once, after the last.
struct LayerGradients {
  LayerTensors sums;     // f32; the same views as `rounded` where nothing is summed or the gradient is f32 itself
  LayerTensors rounded;  // what the optimizer gets
  bool add = false;      // sums hold the micro-batches before this one
  bool complete = true;  // this is the last one
};

/// Turns d_stream, the gradient of x_out, into that of x, and makes the gradients of all weights. kept.gate_up is
/// overwritten. `norm_is_fresh`: work.norm holds norm(x_mid), as the forward pass and recomputation leave it.
void layer_backward(const LayerCall& call, const TensorView& d_stream, const LayerGradients& gradients,
                    bool norm_is_fresh);

/// For people: what computes the attention of a layer over such a batch on the backend, and why that.
std::string describe_attention(const LlamaShape& shape, DType dtype, const ScratchSizes& backend);
/// False where the backend knows but an upper bound of the scratch of that attention.
bool attention_scratch_is_exact(const LlamaShape& shape, DType dtype, const ScratchSizes& backend);

/// Activations of the head.
struct HeadWork {
  TensorView hidden;        // (N, C), after the final norm
  TensorView rstd;          // (N) f32
  TensorView lse;           // (N) f32
  TensorView target_logit;  // (N) f32
  TensorView d_hidden;      // (N, C), f32 where it is a sum over chunks

  HeadWork rows(std::int64_t first, std::int64_t count) const;
};

/// What the passes of the head over some rows share.
struct HeadCall {
  const OpContext& context;
  TensorView targets;  // (N) i32
  HeadWork work;
};

/// Rows [first_token, first_token + v) of the output table, and room for their logits.
struct HeadChunk {
  TensorView weight;  // (v, C)
  TensorView logits;  // (N, v)
  std::int64_t first_token = 0;
};

/// hidden = norm(x).  x: (N, C), norm_weight: (C).
void head_norm(const HeadCall& call, const TensorView& norm_weight, const TensorView& x, float eps);

/// logits = hidden weight^T for one chunk.
void head_logits(const HeadCall& call, const HeadChunk& chunk);

/// Makes the chunk's logits and folds them into lse and target_logit; chunks come in ascending order.
void head_chunk_forward(const HeadCall& call, const HeadChunk& chunk);

/// loss = scale * sum over valid targets, after all chunks.  loss: (1) f32.
void head_loss(const HeadCall& call, float scale, const TensorView& loss);

/// What a chunk's backward pass does beside its own gradient.
struct HeadChunkBackward {
  float scale = 1;            // 1 / number of valid targets
  bool logits_fresh = false;  // chunk.logits still holds them
  TensorView d_weight;        // (v, C), f32 where it is added to
  bool add_weight = false;    // d_weight holds the gradient of other rows
  bool add_hidden = false;    // d_hidden holds the part of other chunks
};

/// Gradient of one chunk: d_weight, and its part of d_hidden. Overwrites the logits.
void head_chunk_backward(const HeadCall& call, const HeadChunk& chunk, const HeadChunkBackward& how);

struct HeadNormBackward {
  TensorView norm_weight;    // (C)
  TensorView x;              // (N, C)
  TensorView d_stream;       // (N, C); may be the same view as d_hidden
  TensorView d_norm_weight;  // (C)
};

/// d_stream and d_norm_weight from d_hidden.
void head_norm_backward(const HeadCall& call, const HeadNormBackward& tensors);

/// y = x, rounded to y's dtype; nothing where they are the same memory.
void round_once(const OpContext& context, const TensorView& x, const TensorView& y);

}  // namespace ferry
