// SPDX-License-Identifier: Apache-2.0
// What attention.cu chooses between: kernels for Hopper (wgmma and the tensor copy engine; code for sm_90a alone) and
// kernels for every device of compute capability 8.0 or later (mma.sync). The contracts are those of attention.h.
#pragma once

#include "kernels/attention.h"

namespace ferry::kernels::attention {

[[nodiscard]] cudaError_t launch_attention_hopper_forward(const AttentionForwardArgs& args, cudaStream_t stream);
[[nodiscard]] cudaError_t launch_attention_mma_forward(const AttentionForwardArgs& args, cudaStream_t stream);

/// Writes the scratch that the other launches read: lse * log2(e), infinity in the padding, then delta.
[[nodiscard]] cudaError_t launch_attention_delta(const AttentionBackwardArgs& args, cudaStream_t stream);
/// All three gradients.
[[nodiscard]] cudaError_t launch_attention_hopper_backward(const AttentionBackwardArgs& args, cudaStream_t stream);
[[nodiscard]] cudaError_t launch_attention_mma_backward(const AttentionBackwardArgs& args, cudaStream_t stream);

/// d_k and d_v alone.
[[nodiscard]] cudaError_t launch_attention_hopper_backward_keys(const AttentionBackwardArgs& args, cudaStream_t stream);

}  // namespace ferry::kernels::attention
