// SPDX-License-Identifier: Apache-2.0
// AdamW: checks, scalars, dispatch and cutting; the arithmetic is in adamw_<level>.cpp.
#include "optim/adamw.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/int_math.h"
#include "core/rng.h"
#include "core/thread_pool.h"
#include "optim/adamw_kernels.h"

namespace ferry {
namespace {

void check(const AdamwRange& range, SimdLevel level) {
  FERRY_CHECK(level <= supported_simd_level(), kDevice, "adamw is asked to run at {}, but this CPU supports {} at most",
              to_string(level), to_string(supported_simd_level()));
  FERRY_CHECK(range.dtype == DType::kF32 || range.dtype == DType::kBf16, kDType,
              "adamw has weights of type {}: expected f32 or bf16", to_string(range.dtype));
  FERRY_CHECK(range.n >= 0, kShape, "adamw has {} elements: expected 0 or more", range.n);
  if (range.n == 0) return;
  FERRY_CHECK(range.weight && range.m && range.v && range.gradient, kShape,
              "adamw of {} elements lacks an array: weight {}, m {}, v {}, gradient {}", range.n,
              range.weight ? "given" : "missing", range.m ? "given" : "missing", range.v ? "given" : "missing",
              range.gradient ? "given" : "missing");
  FERRY_CHECK((range.weight_low != nullptr) == has_weight_low(range.dtype, range.state), kShape,
              "adamw of {} weights with {} state has {} weight_low: expected one exactly for bf16 weights with f32 or "
              "mixed state",
              to_string(range.dtype), to_string(range.state), range.weight_low ? "a" : "no");
}

}  // namespace

const char* to_string(OptimizerState state) {
  switch (state) {
    case OptimizerState::kF32: return "f32";
    case OptimizerState::kMixed: return "mixed";
    case OptimizerState::kBf16: return "bf16";
  }
  return "unknown";
}

const char* to_string(Rounding rounding) { return rounding == Rounding::kStochastic ? "stochastic" : "nearest"; }

AdamwScalars adamw_scalars(const AdamwOptions& options, double lr, std::int64_t step, bool decayed) {
  FERRY_CHECK(step >= 1, kConfig, "adamw step is {}: expected 1 or more, the first update is step 1", step);
  const auto t = static_cast<double>(step);
  AdamwScalars scalars;
  scalars.beta2 = static_cast<float>(options.beta2);
  scalars.one_minus_beta1 = static_cast<float>(1 - options.beta1);
  scalars.one_minus_beta2 = static_cast<float>(1 - options.beta2);
  scalars.decay = decayed ? static_cast<float>(1 - lr * options.weight_decay) : 1.0F;
  scalars.step_size = static_cast<float>(lr / (1 - std::pow(options.beta1, t)));
  scalars.inverse_sqrt_correction2 = static_cast<float>(1 / std::sqrt(1 - std::pow(options.beta2, t)));
  scalars.eps = static_cast<float>(options.eps);
  scalars.rounding = options.rounding;
  scalars.seed = options.seed;
  scalars.step = step;
  return scalars;
}

AdamwRange slice(const AdamwRange& range, std::int64_t begin, std::int64_t n) {
  const auto offset = static_cast<std::size_t>(begin);
  const std::size_t weight_offset = offset * size_of(range.dtype);
  const std::size_t moment_offset = offset * size_of(moment_dtype(range.dtype, range.state));
  AdamwRange part = range;
  part.weight = static_cast<std::byte*>(range.weight) + weight_offset;
  part.weight_low = range.weight_low ? range.weight_low + offset : nullptr;
  part.m = static_cast<std::byte*>(range.m) + moment_offset;
  part.v = static_cast<std::byte*>(range.v) + moment_offset;
  part.gradient = static_cast<const std::byte*>(range.gradient) + weight_offset;
  part.n = n;
  part.element = range.element + begin;
  return part;
}

SimdLevel adamw_path(SimdLevel level) { return level; }

NoiseKey adamw_noise_key(const AdamwScalars& scalars, std::int64_t parameter) {
  const auto low = [](auto value) { return static_cast<std::uint32_t>(value); };
  const auto high = [](auto value) { return static_cast<std::uint32_t>(static_cast<std::uint64_t>(value) >> 32); };
  const auto words = philox4x32({low(scalars.step), high(scalars.step), low(parameter), high(parameter)},
                                {low(scalars.seed), high(scalars.seed)});
  return {words[0], words[1]};
}

detail::AdamwKernel detail::adamw_kernel(SimdLevel level) {
  switch (adamw_path(level)) {
    case SimdLevel::kScalar: break;
    case SimdLevel::kAvx2: return adamw_avx2;
    case SimdLevel::kAvx512: return adamw_avx512;
  }
  return adamw_scalar;
}

void adamw_update(const AdamwRange& range, const AdamwScalars& scalars, SimdLevel level) {
  check(range, level);
  detail::adamw_kernel(level)(range, scalars, adamw_noise_key(scalars, range.parameter));
}

void adamw_update(const AdamwRange& range, const AdamwScalars& scalars, SimdLevel level, ThreadPool& pool) {
  check(range, level);
  const detail::AdamwKernel kernel = detail::adamw_kernel(level);
  const NoiseKey key = adamw_noise_key(scalars, range.parameter);
  pool.parallel_for(ceil_div(range.n, kAdamwCut), [&](std::int64_t cut) {
    const std::int64_t begin = cut * kAdamwCut;
    kernel(slice(range, begin, std::min(kAdamwCut, range.n - begin)), scalars, key);
  });
}

SplitF32 split_f32(float master) {
  const std::uint32_t bits = std::isnan(master) ? 0x7fc00000U : std::bit_cast<std::uint32_t>(master);
  const std::uint32_t high = (bits + 0x8000U) >> 16;
  return {Bf16{static_cast<std::uint16_t>(high)}, static_cast<std::int16_t>(bits - (high << 16))};
}

float join_f32(Bf16 high, std::int16_t low) {
  const std::uint32_t upper = static_cast<std::uint32_t>(high.bits) << 16;
  return std::bit_cast<float>(upper + static_cast<std::uint32_t>(static_cast<std::int32_t>(low)));
}

}  // namespace ferry
