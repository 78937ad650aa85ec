// SPDX-License-Identifier: Apache-2.0
// AdamW on plain host memory: contract, state formats, scalars.
// Source: Loshchilov & Hutter 2019, arXiv:1711.05101, algorithm 2; order of operations of torch.optim.AdamW. Stochastic
// rounding: Gupta et al. 2015, arXiv:1502.02551, section 3.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "core/simd.h"

namespace ferry {

class ThreadPool;

/// What one update keeps per parameter beside the weight that the model reads. The update itself uses the unrounded m
/// and v under every format.
///   kF32    exact f32. bf16 weights: the weight is the upper half of the master, `weight_low` the signed 16-bit rest
///           (bits = (high << 16) + low, high = (bits + 0x8000) >> 16); m, v f32. f32 weights are the master
///           themselves.
///   kMixed  the same exact master; m and v are rounded to bf16.
///   kBf16   weights, m and v are rounded to bf16.
/// f32 weights keep f32 m and v under every format.
enum class OptimizerState { kF32, kMixed, kBf16 };

/// How AdamW rounds to bf16.
///   kStochastic  up with the probability that keeps the mean: in magnitude, (bits + draw) >> 16 with a draw of 16
///                uniform bits. What is a bf16 already never moves. A finite value beyond the largest finite bf16
///                becomes that: no draw makes an infinity.
///   kNearest     to nearest even, as PyTorch does.
enum class Rounding { kStochastic, kNearest };

const char* to_string(OptimizerState state);
const char* to_string(Rounding rounding);

/// Weights of type `weight` with this state have a weight_low.
constexpr bool has_weight_low(DType weight, OptimizerState state) {
  return weight == DType::kBf16 && state != OptimizerState::kBf16;
}
/// The type of m and v beside weights of type `weight`.
constexpr DType moment_dtype(DType weight, OptimizerState state) {
  return weight == DType::kBf16 && state != OptimizerState::kF32 ? DType::kBf16 : DType::kF32;
}

/// Hyperparameters that stay fixed over a run.
struct AdamwOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  Rounding rounding = Rounding::kStochastic;
  std::uint64_t seed = 0;  // of stochastic rounding
};

/// The step-dependent scalars, computed in f64 and rounded to f32 once.
struct AdamwScalars {
  float beta2 = 0;
  float one_minus_beta1 = 0;
  float one_minus_beta2 = 0;
  float decay = 1;                     // 1 - lr * weight_decay
  float step_size = 0;                 // lr / (1 - beta1^t)
  float inverse_sqrt_correction2 = 1;  // 1 / sqrt(1 - beta2^t)
  float eps = 0;
  float gradient_scale = 1;  // of every gradient as it is read, in f32: the coefficient of clipping
  Rounding rounding = Rounding::kStochastic;
  std::uint64_t seed = 0;
  std::int64_t step = 1;
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
  // What names the range's draws: they are those of (seed, step, parameter, element), however parameters are cut.
  std::int64_t parameter = 0;  // its number in the model
  std::int64_t element = 0;    // of the parameter: the range's first
};

/// g = gradient_scale * gradient; p *= decay; m, v updated;
/// p -= step_size * m / (sqrt(v) * inverse_sqrt_correction2 + eps).
/// The same bits at every level, size, alignment and cut of the range. Blocks; single-threaded.
/// A finite master that would stream as infinity is stored so: a save refuses it (save_model).
/// NaN is stored as 0x7fc00000, in bf16 as 0x7fc0, in weights and moments alike.
/// Throws Error{kShape | kDType} for a missing array or a wrong type, Error{kDevice} for a level that the CPU lacks.
void adamw_update(const AdamwRange& range, const AdamwScalars& scalars, SimdLevel level);

/// The same, shared out over a pool in fixed cuts of kAdamwCut elements.
void adamw_update(const AdamwRange& range, const AdamwScalars& scalars, SimdLevel level, ThreadPool& pool);

/// 230 KB of bf16 state, so that threads end together. 14 threads of an H200's host reach 152 GB/s with f32 state and
/// 148 with mixed; with cuts four times as large 146 and 140 (ferry bench adamw).
inline constexpr std::int64_t kAdamwCut = std::int64_t{1} << 14;

/// Elements [begin, begin + n) of a range.
AdamwRange slice(const AdamwRange& range, std::int64_t begin, std::int64_t n);

/// Which implementation adamw_update runs at `level`: that level's own.
SimdLevel adamw_path(SimdLevel level);

/// Names the draws of one (seed, step, parameter). Draw i is a hash of the key and the lower 32 bits of element i: see
/// adamw_kernels.h.
struct NoiseKey {
  std::uint32_t first = 0;
  std::uint32_t second = 0;
};
NoiseKey adamw_noise_key(const AdamwScalars& scalars, std::int64_t parameter);

/// Splits an exact f32 into the streamed bf16 half and its rest, and back. NaN is stored as 0x7fc00000.
struct SplitF32 {
  Bf16 high;
  std::int16_t low = 0;
};
SplitF32 split_f32(float master);
float join_f32(Bf16 high, std::int16_t low);

}  // namespace ferry
