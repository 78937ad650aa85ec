// SPDX-License-Identifier: Apache-2.0
// What the two backward kernels for Hopper share. One kernel owns keys and sums d_k and d_v, the other owns queries and
// sums d_q. Each forms the probabilities anew, 7 products instead of 5, and so needs no sums across blocks.
// Source: Dao 2023, arXiv:2307.08691, algorithm 2; Shah et al. 2024, arXiv:2407.08608, section 3.
#pragma once

#include "kernels/attention_hopper.cuh"
#include "kernels/attention_hopper_maps.cuh"
#include "kernels/launch_kernel.cuh"

namespace ferry::kernels::attention {

struct BackwardParams {
  CUtensorMap q;
  CUtensorMap k;
  CUtensorMap v;
  CUtensorMap d_o;
  CUtensorMap d_q;  // of the query kernel
  CUtensorMap d_k;  // of the key kernel
  CUtensorMap d_v;
  HeadRows d_k_rows;  // where d_k and d_v do not go through the copy engine
  HeadRows d_v_rows;
  const float* lse2;   // (B, H, T padded): log-sum-exp times log2(e), infinity behind T
  const float* delta;  // (B, H, T padded), 0 behind T
  Sizes sizes;
  int padded_queries;
  float scale;
  float scale2;  // scale * log2(e)
};

// Launches.

inline BackwardParams backward_params(const AttentionPlainBackwardArgs& args) {
  const AttentionShape& s = args.shape;
  BackwardParams p;
  p.sizes = sizes_of(s);
  p.padded_queries = static_cast<int>(round_up(s.n_queries, kPaddedRows));
  p.lse2 = static_cast<const float*>(args.scratch);
  p.delta = p.lse2 + s.batch * s.n_heads * p.padded_queries;
  p.scale = s.scale;
  p.scale2 = s.scale * kLog2E;
  return p;
}

template <class Kernel>
cudaError_t launch_params(Kernel kernel, const LaunchShape& shape, const BackwardParams& p, cudaStream_t stream) {
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shape.shared_bytes));
  return error != cudaSuccess ? error : launch(kernel, shape, stream, p);
}

}  // namespace ferry::kernels::attention
