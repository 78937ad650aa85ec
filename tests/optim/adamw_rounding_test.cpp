// SPDX-License-Identifier: Apache-2.0
// Rounding of what AdamW keeps in bf16: what is stored is the unrounded update, rounded; the mean stays; small updates
// are not lost; nothing finite becomes an infinity by chance.
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "catch.h"
#include "optim/adamw.h"
#include "optim/adamw_kernels.h"
#include "test_util.h"

namespace ferry {
namespace {

using test::delicate_parameters;
using test::Format;
using test::kFormats;
using test::noise;
using test::Parameters;
using test::scalars_of;

constexpr Format kBf16 = kFormats[3], kBf16Nearest = kFormats[2], kMixed = kFormats[5];

std::uint32_t bits_of(float value) { return std::bit_cast<std::uint32_t>(value); }

/// By the contract: (bits + draw) >> 16, but for what is beyond the largest finite bf16.
float rounded(float value, Rounding rounding, std::uint32_t draw) {
  if (rounding == Rounding::kNearest) return to_f32(to_bf16(value));
  const std::uint32_t bits = bits_of(value);
  const bool may_move = (bits & 0x7fffffffU) < 0x7f7f0000U;
  return std::bit_cast<float>((bits + (may_move ? draw : 0U)) & 0xffff0000U);
}

TEST_CASE("bf16 is the exact f32 update rounded once, by draws of its place alone") {
  constexpr std::int64_t kElems = 1027;
  for (const Format& format : kFormats) {
    if (moment_dtype(format.dtype, format.state) != DType::kBf16) continue;
    Parameters got = delicate_parameters(format, kElems);
    Parameters exact(kFormats[0], kElems);
    std::int64_t n_different = 0;
    for (std::int64_t step = 1; step <= 20; ++step) {
      got.fill_gradient(step);
      for (std::int64_t i = 0; i < kElems; ++i) {
        exact.set_weight(i, got.weight(i));
        exact.set_m(i, got.m(i));
        exact.set_v(i, got.v(i));
        exact.set_gradient(i, got.gradient(i));
      }
      const AdamwScalars scalars = scalars_of(format, {0.9, 0.999, 1e-8, 0.1}, 1e-2, step);
      adamw_update(got.range(), scalars, simd_level());
      adamw_update(exact.range(), scalars, simd_level());
      const NoiseKey key = adamw_noise_key(scalars, got.range().parameter);
      for (std::int64_t i = 0; i < kElems; ++i) {
        const auto draws = detail::rounding_draws(key, static_cast<std::uint32_t>(got.range().element + i));
        const float weight = has_weight_low(format.dtype, format.state)
                                 ? exact.weight(i)
                                 : rounded(exact.weight(i), format.rounding, draws.weight);
        n_different += bits_of(got.weight(i)) != bits_of(weight);
        n_different += bits_of(got.m(i)) != bits_of(rounded(exact.m(i), format.rounding, draws.m));
        n_different += bits_of(got.v(i)) != bits_of(rounded(exact.v(i), format.rounding, draws.v));
      }
    }
    INFO(format.name);
    CHECK(n_different == 0);
  }
}

/// Scalars under which a step without gradient multiplies p, m and v with these.
AdamwScalars factors(const Format& format, float p, float m, float v, std::int64_t step) {
  AdamwScalars scalars = scalars_of(format, {}, 0, step);
  scalars.decay = p;
  scalars.one_minus_beta1 = 1 - m;
  scalars.beta2 = v;
  return scalars;
}

Parameters all_one(const Format& format, std::int64_t n) {
  Parameters p(format, n);
  for (std::int64_t i = 0; i < n; ++i) {
    p.set_weight(i, 1);
    p.set_m(i, 1);
    p.set_v(i, 1);
    p.set_gradient(i, 0);
  }
  return p;
}

TEST_CASE(
    "stochastic rounding keeps the mean, with errors that are independent within an element, over tensors and steps") {
  constexpr std::int64_t kElems = 1 << 17;
  // Shares of the way from 1 down to the next bf16, 1 - 2^-8.
  const double shares[] = {0.25, 0.0625, 0.7};
  const auto below_one = [](double share) { return static_cast<float>(1 - share / 256); };
  struct Errors {
    std::vector<double> of[3];
  };
  const auto errors_of = [&](std::int64_t step, std::int64_t parameter) {
    Parameters p = all_one(kBf16, kElems);
    AdamwRange range = p.range();
    range.parameter = parameter;
    adamw_update(range, factors(kBf16, below_one(shares[0]), below_one(shares[1]), below_one(shares[2]), step),
                 simd_level());
    Errors errors;
    for (std::int64_t i = 0; i < kElems; ++i) {
      const double stored[] = {p.weight(i), p.m(i), p.v(i)};
      for (int k = 0; k < 3; ++k) {
        const double steps_down = (1 - stored[k]) * 256;
        if (steps_down != 0 && steps_down != 1) FAIL("not a neighbour: " << stored[k]);
        errors.of[k].push_back((steps_down - shares[k]) / std::sqrt(shares[k] * (1 - shares[k])));
      }
    }
    return errors;
  };
  const auto deviations = [](const std::vector<double>& a, const std::vector<double>& b) {
    double sum = 0;
    for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
    return std::abs(sum) / std::sqrt(static_cast<double>(a.size()));
  };
  const Errors errors = errors_of(1, 0), next_step = errors_of(2, 0), other_tensor = errors_of(1, 1);
  const std::vector<double> ones(kElems, 1.0);
  for (int k = 0; k < 3; ++k) {
    CHECK(deviations(errors.of[k], ones) < 5);
    CHECK(deviations(errors.of[k], errors.of[(k + 1) % 3]) < 5);
    CHECK(deviations(errors.of[k], next_step.of[k]) < 5);
    CHECK(deviations(errors.of[k], other_tensor.of[k]) < 5);
  }
}

TEST_CASE("what is a bf16 already never moves") {
  constexpr std::int64_t kElems = 512;
  for (const Format& format : {kBf16, kMixed}) {
    Parameters p = all_one(format, kElems);
    for (std::int64_t i = 0; i < kElems; ++i) {
      p.set_weight(i, to_f32(Bf16{static_cast<std::uint16_t>(i * 128)}));  // all exponents and signs
      p.set_m(i, to_f32(to_bf16(noise(i, 1))));
    }
    const Parameters before = p;
    for (std::int64_t step = 1; step <= 50; ++step)
      adamw_update(p.range(), factors(format, 1, 1, 1, step), simd_level());
    INFO(format.name);
    CHECK(p.same_bits_as(before));
  }
}

TEST_CASE("no draw makes an infinity of a finite value") {
  constexpr std::int64_t kElems = 999;
  const float max_bf16 = std::bit_cast<float>(0x7f7f0000U);
  for (const SimdLevel level : {SimdLevel::kScalar, SimdLevel::kAvx2, SimdLevel::kAvx512}) {
    if (level > supported_simd_level()) continue;
    for (const Format& format : {kBf16, kBf16Nearest}) {
      Parameters p = all_one(format, kElems);
      for (std::int64_t i = 0; i < kElems; ++i) p.set_weight(i, i % 2 == 0 ? max_bf16 : -max_bf16);
      adamw_update(p.range(), factors(format, 1.0035F, 1, 1, 1), level);  // nearly the largest f32
      INFO(to_string(level) << ", " << format.name);
      // To nearest it is an infinity, as IEEE 754 rounds.
      const float want = format.rounding == Rounding::kNearest ? std::numeric_limits<float>::infinity() : max_bf16;
      std::int64_t n_wrong = 0;
      for (std::int64_t i = 0; i < kElems; ++i) n_wrong += p.weight(i) != (i % 2 == 0 ? want : -want);
      CHECK(n_wrong == 0);
      adamw_update(p.range(), factors(format, 2, 1, 1, 2), level);  // an infinity of the update stays one
      CHECK(std::isinf(p.weight(0)));
    }
  }
}

/// Mean distance that weights at 1 have gone after `n_steps` steps of lr 1e-5 down a slope of 1.
double distance_learned(const Format& format, std::int64_t n_steps) {
  constexpr std::int64_t kElems = 256;
  Parameters p = all_one(format, kElems);
  for (std::int64_t i = 0; i < kElems; ++i) {
    p.set_m(i, 0);
    p.set_v(i, 0);
    p.set_gradient(i, 1);
  }
  for (std::int64_t step = 1; step <= n_steps; ++step) {
    adamw_update(p.range(), scalars_of(format, {}, 1e-5, step), simd_level());
  }
  double sum = 0;
  for (std::int64_t i = 0; i < kElems; ++i) sum += 1 - double{p.weight(i)};
  return sum / kElems;
}

TEST_CASE("at a small learning rate stochastic rounding learns where nearest stands still") {
  constexpr std::int64_t kSteps = 1000;
  CHECK(distance_learned(kBf16Nearest, kSteps) == 0);
  CHECK(std::abs(distance_learned(kFormats[1], kSteps) - 1e-2) < 1e-4);
  CHECK(std::abs(distance_learned(kMixed, kSteps) - 1e-2) < 1e-4);
  CHECK(std::abs(distance_learned(kBf16, kSteps) - 1e-2) < 1e-3);
}

TEST_CASE("under small gradients a nearest second moment stays, a stochastic one decays") {
  const auto decayed = [](const Format& format) {
    Parameters p = all_one(format, 256);
    for (std::int64_t step = 1; step <= 1000; ++step) {
      adamw_update(p.range(), factors(format, 1, 1, 0.999F, step), simd_level());
    }
    double sum = 0;
    for (std::int64_t i = 0; i < 256; ++i) sum += p.v(i);
    return sum / 256;
  };
  CHECK(decayed(kBf16Nearest) == 1);
  CHECK(std::abs(decayed(kBf16) - std::exp(-1)) < 0.01);
  CHECK(std::abs(decayed(kMixed) - std::exp(-1)) < 0.01);
}

}  // namespace
}  // namespace ferry
