// SPDX-License-Identifier: Apache-2.0
// Plain attention: causal, forward and backward, any length, any head width up to 256, f32 and bf16, linear scratch.
// Serves what faster attention refuses. The rules of launch.h hold.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/launch.h"

namespace ferry::kernels {

/// Largest head width of the plain kernels.
inline constexpr std::int64_t kAttentionPlainMaxWidth = 256;

/// Rows of heads: element (b, t, h, d) lies at data[b * batch_stride + t * row_stride + h * head_stride + d].
struct HeadRows {
  void* data = nullptr;
  std::int64_t batch_stride = 0;  // elements
  std::int64_t row_stride = 0;
  std::int64_t head_stride = 0;
};

/// Query i sees keys j <= i + n_keys - n_queries; query head h reads key/value head h / (n_heads / n_kv_heads).
struct AttentionShape {
  std::int64_t batch = 0;
  std::int64_t n_queries = 0;
  std::int64_t n_keys = 0;  // >= n_queries
  std::int64_t n_heads = 0;
  std::int64_t n_kv_heads = 0;  // divides n_heads
  std::int64_t width = 0;       // 1 .. kAttentionPlainMaxWidth
  Type type = Type::kF32;       // of every HeadRows
  float scale = 1;
};

/// o = softmax(scale * q k^T) v, lse[b,h,i] = log sum_j exp(scale * q k^T). No scratch.
struct AttentionPlainForwardArgs {
  AttentionShape shape;
  HeadRows q;            // (B, T, H, D)
  HeadRows k;            // (B, S, G, D)
  HeadRows v;            // (B, S, G, D)
  HeadRows o;            // (B, T, H, D)
  float* lse = nullptr;  // (B, H, T)
};
[[nodiscard]] cudaError_t launch_attention_plain_forward(const AttentionPlainForwardArgs& args, cudaStream_t stream);

/// Gradients from the saved o and lse. The gradients of a key/value row sum over its query heads, then over queries,
/// both ascending.
struct AttentionPlainBackwardArgs {
  AttentionShape shape;
  HeadRows q;                  // (B, T, H, D)
  HeadRows k;                  // (B, S, G, D)
  HeadRows v;                  // (B, S, G, D)
  HeadRows o;                  // (B, T, H, D)
  const float* lse = nullptr;  // (B, H, T)
  HeadRows d_o;                // (B, T, H, D)
  HeadRows d_q;                // (B, T, H, D)
  HeadRows d_k;                // (B, S, G, D)
  HeadRows d_v;                // (B, S, G, D)
  void* scratch = nullptr;     // attention_plain_backward_scratch_bytes
};
[[nodiscard]] cudaError_t launch_attention_plain_backward(const AttentionPlainBackwardArgs& args, cudaStream_t stream);
/// One f32 per query row and head.
std::size_t attention_plain_backward_scratch_bytes(const AttentionShape& shape);

}  // namespace ferry::kernels
