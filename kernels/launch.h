// SPDX-License-Identifier: Apache-2.0
// Launchers of all CUDA kernels: plain pointers and a stream. They know no tensor view and no backend.
//
// All launchers: the caller has checked the arguments (the contracts are those of backend/ops.h); one or two kernels
// are enqueued on `stream`; nothing is allocated, nothing blocks. They return the first error of a launch, which may be
// the sticky error of earlier work; the caller checks it. Arrays of extent 0 enqueue nothing.
//
// All kernels: f32 or bf16 in memory, f32 arithmetic, one rounding to nearest even on each output; no atomics, so the
// bits depend on the shape alone: not on alignment or strides. Pointers may have any alignment of their element type;
// rows that begin on multiples of 16 bytes are read 16 bytes at a time.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace ferry::kernels {

/// Element type of arrays passed as void*.
enum class Type { kF32, kBf16 };

/// Rows of a matrix whose last dimension is contiguous: element (r, c) is data[r * stride + c]; stride in elements.
struct Rows {
  void* data = nullptr;
  std::int64_t stride = 0;
};
struct ConstRows {
  const void* data = nullptr;
  std::int64_t stride = 0;
};

/// y[i,:] = table[ids[i],:]
struct EmbeddingForwardArgs {
  Type type = Type::kF32;             // of table, y
  std::int64_t n_rows = 0;            // N
  std::int64_t width = 0;             // C
  const std::int32_t* ids = nullptr;  // (N)
  const void* table = nullptr;        // (V, C)
  void* y = nullptr;                  // (N, C)
};
[[nodiscard]] cudaError_t launch_embedding_forward(const EmbeddingForwardArgs& args, cudaStream_t stream);

/// d_table[r,:] = round(d_table[r,:] + sum over ids[i] = r of d_y[i,:]), the sum from 0 in the order given.
struct EmbeddingBackwardArgs {
  Type type = Type::kF32;               // of d_y, d_table
  std::int64_t n_rows = 0;              // N
  std::int64_t width = 0;               // C
  const std::int32_t* ids = nullptr;    // (N)
  const std::int32_t* order = nullptr;  // (N), 0..N-1 sorted by (ids[i], i)
  const void* d_y = nullptr;            // (N, C)
  void* d_table = nullptr;              // (V, C), added to
};
[[nodiscard]] cudaError_t launch_embedding_backward(const EmbeddingBackwardArgs& args, cudaStream_t stream);

/// sum = round(x + addend), or x where addend is null; y = sum * rstd * weight; rstd = 1 / sqrt(mean sum^2 + eps).
struct RmsNormForwardArgs {
  Type type = Type::kF32;        // of all but rstd
  std::int64_t n_rows = 0;       // N
  std::int64_t width = 0;        // C
  const void* x = nullptr;       // (N, C)
  const void* addend = nullptr;  // (N, C), optional
  void* sum = nullptr;           // (N, C), together with addend; may be x or addend
  const void* weight = nullptr;  // (C)
  void* y = nullptr;             // (N, C); may be x or addend
  float* rstd = nullptr;         // (N)
  float eps = 0;
};
[[nodiscard]] cudaError_t launch_rmsnorm_forward(const RmsNormForwardArgs& args, cudaStream_t stream);

/// d_x and d_weight of RMSNorm; d_weight from sums over fixed blocks of rows, which go through `scratch`.
struct RmsNormBackwardArgs {
  Type type = Type::kF32;            // of all but rstd and d_weight
  Type d_weight_type = Type::kF32;   // `type` or f32
  std::int64_t n_rows = 0;           // N
  std::int64_t width = 0;            // C
  const void* d_y = nullptr;         // (N, C)
  const void* x = nullptr;           // (N, C)
  const void* weight = nullptr;      // (C)
  const float* rstd = nullptr;       // (N)
  const void* d_residual = nullptr;  // (N, C), optional
  void* d_x = nullptr;               // (N, C); may be d_y or d_residual
  void* d_weight = nullptr;          // (C)
  bool accumulate = false;           // d_weight is added to
  void* scratch = nullptr;           // rmsnorm_backward_scratch_bytes, aligned to 16
};
[[nodiscard]] cudaError_t launch_rmsnorm_backward(const RmsNormBackwardArgs& args, cudaStream_t stream);
std::size_t rmsnorm_backward_scratch_bytes(std::int64_t n_rows, std::int64_t width);

/// Rotates the pairs (x[j], x[j + D/2]) of each head in place; `inverse` turns them back.
struct RopeArgs {
  Type type = Type::kF32;    // of x
  std::int64_t n_batch = 0;  // B
  std::int64_t length = 0;   // T
  std::int64_t n_heads = 0;
  std::int64_t head_width = 0;  // D, even
  std::int64_t batch_stride = 0;
  std::int64_t position_stride = 0;
  std::int64_t head_stride = 0;
  void* x = nullptr;           // (B, T, heads, D), strided
  const float* cos = nullptr;  // (T, D/2)
  const float* sin = nullptr;  // (T, D/2)
  bool inverse = false;
};
[[nodiscard]] cudaError_t launch_rope(const RopeArgs& args, cudaStream_t stream);

/// y = silu(gate) * up
struct SwigluForwardArgs {
  Type type = Type::kF32;
  std::int64_t n_rows = 0;  // N
  std::int64_t width = 0;   // F
  ConstRows gate;           // (N, F)
  ConstRows up;             // (N, F)
  Rows y;                   // (N, F); may be gate or up
};
[[nodiscard]] cudaError_t launch_swiglu_forward(const SwigluForwardArgs& args, cudaStream_t stream);

struct SwigluBackwardArgs {
  Type type = Type::kF32;
  std::int64_t n_rows = 0;  // N
  std::int64_t width = 0;   // F
  ConstRows d_y;            // (N, F)
  ConstRows gate;           // (N, F)
  ConstRows up;             // (N, F)
  Rows d_gate;              // (N, F); may be gate
  Rows d_up;                // (N, F); may be up
  Rows y;                   // (N, F), optional; may be d_y
};
[[nodiscard]] cudaError_t launch_swiglu_backward(const SwigluBackwardArgs& args, cudaStream_t stream);

/// Target value of rows that do not count.
inline constexpr std::int32_t kIgnoredTarget = -100;

/// One vocabulary chunk: lse = log(exp(lse) + sum_c exp(logits)), target_logit where the target lies in the chunk.
/// first_token == 0 starts anew and does not read lse and target_logit.
struct CrossEntropyChunkArgs {
  Type type = Type::kF32;   // of logits
  std::int64_t n_rows = 0;  // N
  std::int64_t width = 0;   // Vc
  std::int64_t first_token = 0;
  ConstRows logits;                       // (N, Vc)
  const std::int32_t* targets = nullptr;  // (N)
  float* lse = nullptr;                   // (N)
  float* target_logit = nullptr;          // (N)
};
[[nodiscard]] cudaError_t launch_cross_entropy_chunk(const CrossEntropyChunkArgs& args, cudaStream_t stream);

/// loss[0] = scale * sum over targets that count of (lse - target_logit)
struct CrossEntropyLossArgs {
  std::int64_t n_rows = 0;                // N
  const std::int32_t* targets = nullptr;  // (N)
  const float* lse = nullptr;             // (N)
  const float* target_logit = nullptr;    // (N)
  float* loss = nullptr;                  // (1)
  float scale = 1;
};
[[nodiscard]] cudaError_t launch_cross_entropy_loss(const CrossEntropyLossArgs& args, cudaStream_t stream);

/// logits = scale * (exp(logits - lse) - [target]) in place; 0 in rows that do not count.
struct CrossEntropyBackwardArgs {
  Type type = Type::kF32;   // of logits
  std::int64_t n_rows = 0;  // N
  std::int64_t width = 0;   // Vc
  std::int64_t first_token = 0;
  Rows logits;                            // (N, Vc)
  const std::int32_t* targets = nullptr;  // (N)
  const float* lse = nullptr;             // (N)
  float scale = 1;
};
[[nodiscard]] cudaError_t launch_cross_entropy_backward(const CrossEntropyBackwardArgs& args, cudaStream_t stream);

/// Converts n elements to nearest even, a NaN with the bits of the host's conversion; copies them where the types
/// agree.
struct CastArgs {
  Type from = Type::kF32;
  Type to = Type::kF32;
  std::int64_t n = 0;
  const void* x = nullptr;  // n
  void* y = nullptr;        // n
};
[[nodiscard]] cudaError_t launch_cast(const CastArgs& args, cudaStream_t stream);

/// y[0] = sum of x[i]^2, by fixed blocks whose sums go through `scratch`; 0 from rows r with skip[r] != 0.
struct SumOfSquaresArgs {
  Type type = Type::kF32;  // of x
  std::int64_t n = 0;
  std::int64_t width = 0;              // of the rows that `skip` is about
  const void* x = nullptr;             // n
  const std::int32_t* skip = nullptr;  // (n / width), optional
  float* y = nullptr;                  // (1)
  void* scratch = nullptr;             // sum_of_squares_scratch_bytes
};
[[nodiscard]] cudaError_t launch_sum_of_squares(const SumOfSquaresArgs& args, cudaStream_t stream);
std::size_t sum_of_squares_scratch_bytes(std::int64_t n);

/// The step-dependent scalars of AdamW; as optim/adamw.h.
struct AdamwScalars {
  float beta2 = 0;
  float one_minus_beta1 = 0;
  float one_minus_beta2 = 0;
  float decay = 1;
  float step_size = 0;
  float inverse_sqrt_correction2 = 1;
  float eps = 0;
  float gradient_scale = 1;
};

/// What rounding to bf16 draws; as optim/adamw_kernels.h.
struct AdamwNoise {
  bool stochastic = false;  // false: to nearest even
  std::uint32_t first_key = 0;
  std::uint32_t second_key = 0;
  std::uint32_t element = 0;  // the first one's
};

/// One AdamW update, with the bits of the host's. (type, state): (f32, f32); (bf16, f32) with weight_low, the lower
/// half of an f32 master; (bf16, bf16) with or without it.
struct AdamwArgs {
  Type type = Type::kF32;   // of weight, gradient
  Type state = Type::kF32;  // of m, v
  std::int64_t n = 0;
  void* weight = nullptr;              // n, updated
  std::int16_t* weight_low = nullptr;  // n, updated
  void* m = nullptr;                   // n, updated
  void* v = nullptr;                   // n, updated
  const void* gradient = nullptr;      // n
  AdamwScalars scalars;
  AdamwNoise noise;
};
[[nodiscard]] cudaError_t launch_adamw(const AdamwArgs& args, cudaStream_t stream);

}  // namespace ferry::kernels
