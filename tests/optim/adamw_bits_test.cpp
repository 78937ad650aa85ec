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
using test::scalars_of;

/// Every other step scales its gradient.
void take_steps(Parameters& p, const Format& format, SimdLevel level) {
  for (std::int64_t step = 1; step <= 7; ++step) {
    p.fill_delicate_gradient(step);
    AdamwScalars scalars = scalars_of(format, {0.9, 0.999, 1e-8, 0.1}, 1e-2, step);
    if (step % 2 == 0) scalars.gradient_scale = 0.3F;
    adamw_update(p.range(), scalars, level);
  }
}

TEST_CASE("a forced level runs its own implementation and no other") {
  CHECK(adamw_path(SimdLevel::kScalar) == SimdLevel::kScalar);
  CHECK(adamw_path(SimdLevel::kAvx2) == SimdLevel::kAvx2);
  CHECK(adamw_path(SimdLevel::kAvx512) == SimdLevel::kAvx512);
  CHECK(detail::adamw_kernel(SimdLevel::kScalar) == &detail::adamw_scalar);
  CHECK(detail::adamw_kernel(SimdLevel::kAvx2) == &detail::adamw_avx2);
  CHECK(detail::adamw_kernel(SimdLevel::kAvx512) == &detail::adamw_avx512);
}

TEST_CASE("every level gives the same bits at any size and alignment") {
  for (const SimdLevel level : {SimdLevel::kAvx2, SimdLevel::kAvx512}) {
    if (level > supported_simd_level()) continue;
    for (const Format& format : kFormats) {
      for (const std::int64_t n : {0, 1, 7, 8, 9, 22, 1027}) {
        for (const std::int64_t offset : {0, 1}) {
          Parameters want = delicate_parameters(format, n, offset);
          Parameters got = want;
          take_steps(want, format, SimdLevel::kScalar);
          take_steps(got, format, level);
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
        AdamwScalars scalars = scalars_of(format, {0.9, 0.999, 1e-8, 0.1}, 1e-2, step);
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
    const AdamwScalars scalars = scalars_of(format, {}, 1e-2, 1);
    adamw_update(want.range(), scalars, supported_simd_level());
    const AdamwRange whole = got.range();
    for (std::int64_t begin = 0, n = 1; begin < kElems; begin += n, n = std::min(2 * n + 1, kElems - begin)) {
      adamw_update(slice(whole, begin, n), scalars, supported_simd_level());
    }
    INFO(format.name);
    CHECK(got.same_bits_as(want));
  }
}

TEST_CASE("the number of AdamW threads changes no bit") {
  constexpr std::int64_t kElems = 3 * kAdamwCut + 5;
  for (const Format& format : kFormats) {
    const AdamwScalars scalars = scalars_of(format, {}, 1e-2, 1);
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
  for (const SimdLevel level : {SimdLevel::kScalar, SimdLevel::kAvx2, SimdLevel::kAvx512}) {
    if (level > supported_simd_level()) continue;
    for (const Format& format : kFormats) {
      Parameters p(format, 33);
      p.fill();
      p.fill_gradient(1);
      for (const std::int64_t i : {0, 32})
        p.set_gradient(i, std::bit_cast<float>(0xffd50000U));  // whole vector and rest
      adamw_update(p.range(), scalars_of(format, {}, 1e-2, 1), level);
      INFO(to_string(level) << ", " << format.name);
      for (const std::int64_t i : {0, 32}) {
        CHECK(std::bit_cast<std::uint32_t>(p.weight(i)) == 0x7fc00000U);
        CHECK(std::bit_cast<std::uint32_t>(p.m(i)) == 0x7fc00000U);
        CHECK(std::bit_cast<std::uint32_t>(p.v(i)) == 0x7fc00000U);
      }
      CHECK(std::isfinite(p.weight(1)));
    }
  }
}

}  // namespace
}  // namespace ferry
