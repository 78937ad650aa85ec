// SPDX-License-Identifier: Apache-2.0
// AdamW gives the same bits at every level, size, alignment, cut and thread count.
#include <algorithm>
#include <bit>

#include "catch.h"
#include "core/thread_pool.h"
#include "optim/adamw.h"
#include "optim/adamw_kernels.h"
#include "test_util.h"

namespace ferry {
namespace {

using test::delicate_parameters;
using test::Format;
using test::kFormats;
using test::Parameters;

/// Every other step scales its gradient.
void take_steps(Parameters& p, SimdLevel level) {
  for (std::int64_t step = 1; step <= 7; ++step) {
    p.fill_delicate_gradient(step);
    AdamwScalars scalars = adamw_scalars({0.9, 0.999, 1e-8, 0.1}, 1e-2, step, true);
    if (step % 2 == 0) scalars.gradient_scale = 0.3F;
    adamw_update(p.range(), scalars, level);
  }
}

TEST_CASE("a forced level runs its own implementation and no other") {
  CHECK(adamw_path(SimdLevel::kScalar) == SimdLevel::kScalar);
  CHECK(adamw_path(SimdLevel::kAvx2) == SimdLevel::kAvx2);
  CHECK(adamw_path(SimdLevel::kAvx512) == SimdLevel::kAvx2);
  CHECK(detail::adamw_kernel(SimdLevel::kScalar) == &detail::adamw_scalar);
  CHECK(detail::adamw_kernel(SimdLevel::kAvx2) == &detail::adamw_avx2);
  CHECK(detail::adamw_kernel(SimdLevel::kAvx512) == &detail::adamw_avx2);
}

TEST_CASE("every level gives the same bits at any size and alignment") {
  for (const SimdLevel level : {SimdLevel::kAvx2, SimdLevel::kAvx512}) {
    if (level > supported_simd_level()) continue;
    for (const Format& format : kFormats) {
      for (const std::int64_t n : {0, 1, 7, 8, 9, 22, 1027}) {
        for (const std::int64_t offset : {0, 1}) {
          Parameters want = delicate_parameters(format, n, offset);
          Parameters got = want;
          take_steps(want, SimdLevel::kScalar);
          take_steps(got, level);
          INFO(to_string(level) << ", " << format.name << ", n " << n << ", offset " << offset);
          CHECK(got.same_bits_as(want));
        }
      }
    }
  }
}

TEST_CASE("a gradient scale gives the bits of gradients that were scaled before") {
  constexpr std::int64_t kElems = 1027;
  for (const SimdLevel level : {SimdLevel::kScalar, SimdLevel::kAvx2, SimdLevel::kAvx512}) {
    if (level > supported_simd_level()) continue;
    for (const Format& format : kFormats) {
      const float scale = format.dtype == DType::kF32 ? 0.3F : 0.25F;  // exact in bf16
      Parameters want = delicate_parameters(format, kElems);
      Parameters got = want;
      for (std::int64_t step = 1; step <= 7; ++step) {
        AdamwScalars scalars = adamw_scalars({0.9, 0.999, 1e-8, 0.1}, 1e-2, step, true);
        want.fill_scaled_gradient(step, scale);
        adamw_update(want.range(), scalars, level);
        scalars.gradient_scale = scale;
        got.fill_gradient(step);
        adamw_update(got.range(), scalars, level);
      }
      got.fill_scaled_gradient(7, scale);  // as `want` has it
      INFO(to_string(level) << ", " << format.name);
      CHECK(got.same_bits_as(want));
    }
  }
}

TEST_CASE("where a range is cut changes no bit") {
  constexpr std::int64_t kElems = 1027;
  for (const Format& format : kFormats) {
    Parameters want = delicate_parameters(format, kElems);
    want.fill_gradient(1);
    Parameters got = want;
    const AdamwScalars scalars = adamw_scalars({}, 1e-2, 1, true);
    adamw_update(want.range(), scalars, supported_simd_level());
    const AdamwRange whole = got.range();
    const std::size_t weight_bytes = size_of(format.dtype);
    const std::size_t moment_bytes = format.dtype == DType::kBf16 && format.state == OptimizerState::kBf16 ? 2 : 4;
    for (std::int64_t begin = 0, n = 1; begin < kElems; begin += n, n = std::min(2 * n + 1, kElems - begin)) {
      const auto at = static_cast<std::size_t>(begin);
      AdamwRange part = whole;
      part.weight = static_cast<std::uint8_t*>(whole.weight) + at * weight_bytes;
      part.weight_low = whole.weight_low ? whole.weight_low + at : nullptr;
      part.m = static_cast<std::uint8_t*>(whole.m) + at * moment_bytes;
      part.v = static_cast<std::uint8_t*>(whole.v) + at * moment_bytes;
      part.gradient = static_cast<const std::uint8_t*>(whole.gradient) + at * weight_bytes;
      part.n = n;
      adamw_update(part, scalars, supported_simd_level());
    }
    INFO(format.name);
    CHECK(got.same_bits_as(want));
  }
}

TEST_CASE("the number of AdamW threads changes no bit") {
  constexpr std::int64_t kElems = 3 * kAdamwCut + 5;
  const AdamwScalars scalars = adamw_scalars({}, 1e-2, 1, true);
  for (const Format& format : kFormats) {
    Parameters start = delicate_parameters(format, kElems, 1);
    start.fill_gradient(1);
    Parameters want = start;
    adamw_update(want.range(), scalars, supported_simd_level());
    for (const int n_threads : {1, 2, 5}) {
      ThreadPool pool(n_threads);
      Parameters got = start;
      adamw_update(got.range(), scalars, supported_simd_level(), pool);
      INFO(format.name << ", " << n_threads << " threads");
      CHECK(got.same_bits_as(want));
    }
  }
}

TEST_CASE("a NaN is stored with one bit pattern") {
  for (const SimdLevel level : {SimdLevel::kScalar, supported_simd_level()}) {
    for (const Format& format : kFormats) {
      Parameters p(format, 1);
      p.fill();
      p.set_gradient(0, std::bit_cast<float>(0xffd50000U));
      adamw_update(p.range(), adamw_scalars({}, 1e-2, 1, true), level);
      INFO(to_string(level) << ", " << format.name);
      CHECK(std::bit_cast<std::uint32_t>(p.weight(0)) == 0x7fc00000U);
      CHECK(std::bit_cast<std::uint32_t>(p.m(0)) == 0x7fc00000U);
      CHECK(std::bit_cast<std::uint32_t>(p.v(0)) == 0x7fc00000U);
    }
  }
}

}  // namespace
}  // namespace ferry
