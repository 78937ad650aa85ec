// SPDX-License-Identifier: Apache-2.0
// Fused attention on tensor cores: causal, forward and backward, bf16 with f32 softmax and sums, scratch linear in T.
// The rules of launch.h hold but one: every row of every array begins on a multiple of 16 bytes.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "kernels/attention_plain.h"

namespace ferry::kernels {

using AttentionForwardArgs = AttentionPlainForwardArgs;
using AttentionBackwardArgs = AttentionPlainBackwardArgs;

/// True where the fused kernels take the call: bf16, width 64, 80, 96 or 128, scale > 0, 16-byte rows, and a device of
/// compute capability 8.0 or later. Depends on shape, strides, addresses and the current device alone.
bool attention_supported(const AttentionForwardArgs& args);
bool attention_supported(const AttentionBackwardArgs& args);

/// Enqueues one kernel.
[[nodiscard]] cudaError_t launch_attention_forward(const AttentionForwardArgs& args, cudaStream_t stream);

/// Enqueues three kernels: delta, then d_k and d_v, then d_q. The gradients of a key/value row sum over its query
/// heads, then over queries, both ascending: two runs give the same bits.
[[nodiscard]] cudaError_t launch_attention_backward(const AttentionBackwardArgs& args, cudaStream_t stream);
/// Two f32 per query row and head, rows padded to 128.
std::size_t attention_backward_scratch_bytes(const AttentionShape& shape);

}  // namespace ferry::kernels
