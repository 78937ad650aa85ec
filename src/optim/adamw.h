// SPDX-License-Identifier: Apache-2.0
// AdamW on plain host memory: contract, state formats, scalars.
// Source: Loshchilov & Hutter 2019, arXiv:1711.05101, algorithm 2; order of operations of torch.optim.AdamW.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "core/simd.h"

namespace ferry {

class ThreadPool;

/// What one update keeps per parameter beside the weight that the model reads.
///   kF32   exact f32. bf16 weights: the weight is the upper half of the master, `weight_low` the signed 16-bit rest
///          (bits = (high << 16) + low, high = (bits + 0x8000) >> 16); m, v f32. f32 weights are the master themselves.
///   kBf16  bf16 weights, m and v, rounded to nearest even; the update itself uses the unrounded m and v.
///          f32 weights keep f32 m and v under either format.
enum class OptimizerState { kF32, kBf16 };

const char* to_string(OptimizerState state);

/// Hyperparameters that stay fixed over a run.
struct AdamwOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
};

/// The step-dependent scalars, computed in f64 and rounded to f32 once.
struct AdamwScalars {
  float beta1 = 0;
  float beta2 = 0;
  float one_minus_beta1 = 0;
  float one_minus_beta2 = 0;
  float decay = 1;             // 1 - lr * weight_decay
  float step_size = 0;         // lr / (1 - beta1^t)
  float sqrt_correction2 = 1;  // sqrt(1 - beta2^t)
  float eps = 0;
  float gradient_scale = 1;  // of every gradient as it is read, in f32: the coefficient of clipping
};

/// Scalars of step `step` (the first is 1) at learning rate `lr`; `decayed` says whether weight decay applies.
/// Throws Error{kConfig} for a step below 1.
AdamwScalars adamw_scalars(const AdamwOptions& options, double lr, std::int64_t step, bool decayed);

/// One flat range of parameters. Types by (weight dtype, state): see OptimizerState.
struct AdamwRange {
  DType dtype = DType::kF32;  // of weight and gradient: kF32 | kBf16
  OptimizerState state = OptimizerState::kF32;
  void* weight = nullptr;              // n, updated
  std::int16_t* weight_low = nullptr;  // n, updated; only for bf16 weights with f32 state
  void* m = nullptr;                   // n, updated
  void* v = nullptr;                   // n, updated
  const void* gradient = nullptr;      // n
  std::int64_t n = 0;
};

/// Which implementation runs at `level`: kScalar or kAvx2. kAvx512 has none of its own and runs the AVX2 one.
SimdLevel adamw_path(SimdLevel level);

/// g = gradient_scale * gradient; p *= decay; m, v updated; p -= step_size * m / (sqrt(v) / sqrt_correction2 + eps).
/// The same bits at every level, size, alignment and cut of the range. Blocks; single-threaded.
/// A finite master that would stream as infinity is stored so: a save refuses it (save_model).
/// NaN is stored as 0x7fc00000, in bf16 as 0x7fc0, in weights and moments alike.
/// Throws Error{kShape | kDType} for a missing array or a wrong type, Error{kDevice} for a level that the CPU lacks.
void adamw_update(const AdamwRange& range, const AdamwScalars& scalars, SimdLevel level);

/// The same, shared out over a pool in fixed cuts of kAdamwCut elements.
void adamw_update(const AdamwRange& range, const AdamwScalars& scalars, SimdLevel level, ThreadPool& pool);

inline constexpr std::int64_t kAdamwCut = std::int64_t{1} << 16;

/// Splits an exact f32 into the streamed bf16 half and its rest, and back. NaN is stored as 0x7fc00000.
struct SplitF32 {
  Bf16 high;
  std::int16_t low = 0;
};
SplitF32 split_f32(float master);
float join_f32(Bf16 high, std::int16_t low);

}  // namespace ferry
