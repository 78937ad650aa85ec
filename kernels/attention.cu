// SPDX-License-Identifier: Apache-2.0
// Which calls the fused attention takes, and which of its kernels run on the current device.
// Source: Dao 2023, arXiv:2307.08691.
#include "kernels/attention.h"

#include <limits>

#include "kernels/attention_parts.h"
#include "kernels/attention_tiles.cuh"
#include "kernels/launch_kernel.cuh"

namespace ferry::kernels {
namespace {

using std::int64_t;

/// Compute capability of the current device, 90 for 9.0; 0 where there is none.
int device_capability() {
  int device = 0, major = 0, minor = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return 0;
  if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess) return 0;
  if (cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) != cudaSuccess) return 0;
  return major * 10 + minor;
}

/// Whether the build has code for sm_90a.
constexpr bool kHasHopper = FERRY_HOPPER_ATTENTION != 0;
constexpr int kHopperCapability = 90;

bool supports_shape(const AttentionShape& s) {
  const bool has_width = s.width == 64 || s.width == 80 || s.width == 96 || s.width == 128;
  // Places in the kernels are 32-bit: rows of all heads and sequences, padded.
  const int64_t n_rows = s.batch * s.n_heads * (s.n_keys + attention::kPaddedRows);
  return s.type == Type::kBf16 && has_width && s.scale > 0 && n_rows <= std::numeric_limits<int>::max();
}

bool is_aligned(const AttentionShape& s, int64_t n_rows, int64_t n_heads, const HeadRows& x) {
  constexpr int64_t kElems = 8;
  const auto fits = [](int64_t extent, int64_t stride) { return extent <= 1 || stride % kElems == 0; };
  return kernels::is_aligned(x.data) && fits(s.batch, x.batch_stride) && fits(n_rows, x.row_stride) &&
         fits(n_heads, x.head_stride);
}

bool has_aligned_queries(const AttentionShape& s, const HeadRows& x) {
  return is_aligned(s, s.n_queries, s.n_heads, x);
}
bool has_aligned_keys(const AttentionShape& s, const HeadRows& x) { return is_aligned(s, s.n_keys, s.n_kv_heads, x); }

}  // namespace

bool attention_supported(const AttentionForwardArgs& args) {
  const AttentionShape& s = args.shape;
  return supports_shape(s) && has_aligned_queries(s, args.q) && has_aligned_queries(s, args.o) &&
         has_aligned_keys(s, args.k) && has_aligned_keys(s, args.v) && device_capability() >= 80;
}

bool attention_supported(const AttentionBackwardArgs& args) {
  const AttentionShape& s = args.shape;
  return supports_shape(s) && has_aligned_queries(s, args.q) && has_aligned_queries(s, args.o) &&
         has_aligned_queries(s, args.d_o) && has_aligned_queries(s, args.d_q) && has_aligned_keys(s, args.k) &&
         has_aligned_keys(s, args.v) && has_aligned_keys(s, args.d_k) && has_aligned_keys(s, args.d_v) &&
         kernels::is_aligned(args.scratch) && device_capability() >= 80;
}

cudaError_t launch_attention_forward(const AttentionForwardArgs& args, cudaStream_t stream) {
  if constexpr (kHasHopper) {
    if (device_capability() == kHopperCapability) return attention::launch_attention_hopper_forward(args, stream);
  }
  return attention::launch_attention_mma_forward(args, stream);
}

std::size_t attention_backward_scratch_bytes(const AttentionShape& shape) {
  constexpr std::size_t kArrays = 2;
  const int64_t padded_queries = round_up(shape.n_queries, attention::kPaddedRows);
  return kArrays * sizeof(float) * static_cast<std::size_t>(shape.batch * shape.n_heads * padded_queries);
}

cudaError_t launch_attention_backward(const AttentionBackwardArgs& args, cudaStream_t stream) {
  const cudaError_t error = attention::launch_attention_delta(args, stream);
  if (error != cudaSuccess) return error;
  if constexpr (kHasHopper) {
    if (device_capability() == kHopperCapability) return attention::launch_attention_hopper_backward(args, stream);
  }
  return attention::launch_attention_mma_backward(args, stream);
}

}  // namespace ferry::kernels
