// SPDX-License-Identifier: Apache-2.0
// One Llama layer and the head as sequences of backend ops, on views that the caller placed.
// Source: Touvron et al. 2023, arXiv:2302.13971; layouts and names of transformers' LlamaForCausalLM.
//
// Letters (docs/glossary.md): B batch, T sequence, N = B*T rows, C width, F FFN width, H query heads, G key/value
// heads, D head width, V vocabulary, L layers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "backend/backend.h"
#include "config/model_config.h"

namespace ferry {

/// Where ops go: a stream of a backend, and the scratch that they share on it.
struct OpContext {
  Backend& backend;
  StreamRef stream = nullptr;
  Scratch scratch;
  std::size_t* measured_bytes = nullptr;  // set: nothing runs, the scratch that the ops would need is measured
  std::vector<Op>* recorded = nullptr;    // set: nothing runs, the ops are appended

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

/// What backward needs of a layer's forward beside its input.
struct LayerKept {
  TensorView qkv;       // (N, (H+2G)*D), after RoPE
  TensorView attn;      // (N, H*D)
  TensorView lse;       // (B, H, T) f32
  TensorView x_mid;     // (N, C), input of the MLP's norm
  TensorView gate_up;   // (N, 2F)
  TensorView rstd_in;   // (N) f32
  TensorView rstd_mid;  // (N) f32
};

/// Working space of a layer; see offload/step_buffers.cpp for which of them live at the same time.
struct LayerWork {
  TensorView norm;    // (N, C), output of either norm
  TensorView proj;    // (N, C), attention's output projection
  TensorView act;     // (N, F)
  TensorView d_act;   // (N, F)
  TensorView d_norm;  // (N, C)
  TensorView d_attn;  // (N, H*D)
  TensorView d_qkv;   // (N, (H+2G)*D)
};

/// x_out = layer(x); fills kept.  x, x_out: (N, C); x_out may not be x.
void layer_forward(const OpContext& context, const LlamaShape& shape, const RopeTable& rope,
                   const LayerTensors& weights, const TensorView& x, const TensorView& x_out, const LayerKept& kept,
                   const LayerWork& work);

/// Fills kept from x again: the forward pass without the down projection. Afterwards work.norm holds norm(x_mid).
void layer_recompute(const OpContext& context, const LlamaShape& shape, const RopeTable& rope,
                     const LayerTensors& weights, const TensorView& x, const LayerKept& kept, const LayerWork& work);

/// Turns d_stream, the gradient of x_out, into that of x, and writes the gradients of all weights. kept.gate_up is
/// overwritten. `norm_is_fresh`: work.norm holds norm(x_mid), as layer_recompute leaves it.
void layer_backward(const OpContext& context, const LlamaShape& shape, const RopeTable& rope,
                    const LayerTensors& weights, const TensorView& x, const LayerKept& kept, const LayerWork& work,
                    const TensorView& d_stream, const LayerTensors& d_weights, bool norm_is_fresh);

/// Working space of the head. Logits hold one chunk of the vocabulary.
struct HeadWork {
  TensorView hidden;        // (N, C), after the final norm
  TensorView rstd;          // (N) f32
  TensorView logits;        // (N, Vc); narrower chunks use its first N*v elements
  TensorView lse;           // (N) f32
  TensorView target_logit;  // (N) f32
  TensorView d_hidden;      // (N, C) f32
  TensorView d_norm;        // (N, C), d_hidden in the model's dtype; the same view as d_hidden for f32
};

/// Rows [first_token, first_token + v) of the output table.
struct HeadChunk {
  TensorView weight;  // (v, C)
  std::int64_t first_token = 0;
};

/// hidden = norm(x).  x: (N, C), norm_weight: (C).
void head_norm(const OpContext& context, const LlamaShape& shape, const TensorView& norm_weight, const TensorView& x,
               const HeadWork& work);

/// logits = hidden weight^T for one chunk.
void head_logits(const OpContext& context, const HeadChunk& chunk, const HeadWork& work);

/// Folds the chunk's logits into lse and target_logit; chunks come in ascending order.  targets: (N) i32.
void head_chunk_forward(const OpContext& context, const HeadChunk& chunk, const TensorView& targets,
                        const HeadWork& work);

/// loss = scale * sum over valid targets, after all chunks.  loss: (1) f32.
void head_loss(const OpContext& context, const TensorView& targets, float scale, const TensorView& loss,
               const HeadWork& work);

/// What a chunk's backward pass does beside its own gradient.
struct HeadChunkBackward {
  float scale = 1;            // 1 / number of valid targets
  bool first = false;         // d_hidden starts here
  bool logits_fresh = false;  // work.logits still holds this chunk's logits
};

/// Gradient of one chunk: d_weight (v, C), and its part added to d_hidden. Overwrites logits.
void head_chunk_backward(const OpContext& context, const HeadChunk& chunk, const TensorView& targets,
                         const HeadChunkBackward& how, const TensorView& d_weight, const HeadWork& work);

/// d_stream (N, C) and d_norm_weight (C) from d_hidden.
void head_norm_backward(const OpContext& context, const TensorView& norm_weight, const TensorView& x,
                        const TensorView& d_stream, const TensorView& d_norm_weight, const HeadWork& work);

}  // namespace ferry
