// SPDX-License-Identifier: Apache-2.0
// AdamW's numbers: parity with PyTorch, exactness of the split master, bf16 state, steps, errors.
#include "optim/adamw.h"

#include <algorithm>
#include <fstream>

#include "catch.h"
#include "test_util.h"

namespace ferry {
namespace {

using test::contains;
using test::error_of;
using test::kFormats;
using test::noise;
using test::Parameters;
using test::scalars_of;

constexpr std::int64_t kFixtureElems = 1027;

std::vector<float> read_fixture(const std::string& name) {
  std::vector<float> values(5 * kFixtureElems);
  std::ifstream file(std::string(FERRY_FIXTURES) + "/optim/" + name, std::ios::binary);
  file.read(reinterpret_cast<char*>(values.data()), static_cast<std::streamsize>(values.size() * sizeof(float)));
  REQUIRE(file.good());
  return values;
}

/// |got - want| / |want - origin| in the Euclidean norm.
double distance(const std::vector<float>& got, const float* want, const std::vector<float>& origin) {
  double error = 0;
  double norm = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    error += std::pow(double{got[i]} - want[i], 2);
    norm += std::pow(double{want[i]} - origin[i], 2);
  }
  return std::sqrt(error / norm);
}

/// The coefficient of torch.nn.utils.clip_grad_norm_ in f32.
float clip_coefficient(const std::vector<float>& gradient, double max_norm) {
  double squares = 0;
  for (const float g : gradient) squares += double{g} * g;
  return static_cast<float>(std::min(1.0, max_norm / (std::sqrt(squares) + 1e-6)));
}

/// A case of tests/fixtures/make_adamw_fixtures.py. Clipped ones have gradients of three sizes.
struct ParityCase {
  const char* fixture;
  double weight_decay;
  double max_norm;  // 0: not clipped

  float gradient_size(std::int64_t step) const { return max_norm > 0 ? static_cast<float>(1 << (step % 3)) : 1.0F; }
};

void check_parity(const ParityCase& parity, SimdLevel level) {
  const std::vector<float> want = read_fixture(parity.fixture);
  const AdamwOptions options{0.9, 0.999, 1e-8, parity.weight_decay};
  Parameters got(kFormats[0], kFixtureElems);
  got.fill();
  const auto values = [&](auto&& get) {
    std::vector<float> all;
    for (std::int64_t i = 0; i < kFixtureElems; ++i) all.push_back(get(i));
    return all;
  };
  const auto weights = [&] { return values([&](std::int64_t i) { return got.weight(i); }); };
  const std::vector<float> start = weights();
  const std::vector<float> zeros(kFixtureElems);
  const float* part = want.data();
  for (std::int64_t step = 1; step <= 100; ++step) {
    const double lr = 1e-3 * (1 - static_cast<double>(step - 1) / 200);
    got.fill_scaled_gradient(step, parity.gradient_size(step));
    AdamwScalars scalars = adamw_scalars(options, lr, step, true);
    if (parity.max_norm > 0) {
      scalars.gradient_scale =
          clip_coefficient(values([&](std::int64_t i) { return got.gradient(i); }), parity.max_norm);
    }
    adamw_update(got.range(), scalars, level);
    if (step != 1 && step != 10 && step != 100) continue;
    INFO("step " << step);
    CHECK(distance(weights(), part, zeros) < 1e-6);
    CHECK(distance(weights(), part, start) < 1e-4);
    part += kFixtureElems;
  }
  CHECK(distance(values([&](std::int64_t i) { return got.m(i); }), part, zeros) < 1e-6);
  CHECK(distance(values([&](std::int64_t i) { return got.v(i); }), part + kFixtureElems, zeros) < 1e-6);
}

TEST_CASE("100 steps agree with torch.optim.AdamW") {
  for (const SimdLevel level : {SimdLevel::kScalar, SimdLevel::kAvx2, SimdLevel::kAvx512}) {
    if (level > supported_simd_level()) continue;
    INFO(to_string(level));
    check_parity({"adamw_plain.f32", 0, 0}, level);
    check_parity({"adamw_decay.f32", 0.1, 0}, level);
    check_parity({"adamw_clip.f32", 0.1, 10}, level);
  }
}

TEST_CASE("splitting a master and joining it gives the same bits") {
  for (std::uint32_t high = 0; high < 0x10000U; ++high) {
    for (const std::uint32_t low : {0U, 1U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU}) {
      const float master = std::bit_cast<float>(high << 16 | low);
      const SplitF32 split = split_f32(master);
      const std::uint32_t want = std::isnan(master) ? 0x7fc00000U : high << 16 | low;
      if (std::bit_cast<std::uint32_t>(join_f32(split.high, split.low)) != want) FAIL("bits " << (high << 16 | low));
    }
  }
}

TEST_CASE("the streamed half of a master is the nearest bf16, ties away from zero") {
  const struct {
    std::uint32_t master;
    std::uint16_t high;
    std::int16_t low;
  } cases[] = {
      {0x3f807fff, 0x3f80, 32767}, {0x3f808000, 0x3f81, -32768}, {0xbf808000, 0xbf81, -32768}, {0x3f80ffff, 0x3f81, -1},
      {0x80000000, 0x8000, 0},     {0x00008000, 0x0001, -32768}, {0x00000001, 0x0000, 1},      {0x7f7fffff, 0x7f80, -1},
      {0xff800000, 0xff80, 0},     {0x7f800001, 0x7fc0, 0},      {0xffffffff, 0x7fc0, 0},
  };
  for (const auto& c : cases) {
    const SplitF32 split = split_f32(std::bit_cast<float>(c.master));
    INFO("master " << c.master);
    CHECK(split.high.bits == c.high);
    CHECK(split.low == c.low);
  }
}

/// Values at which splitting or arithmetic is delicate.
std::vector<float> delicate_weights() {
  std::vector<float> values;
  for (const std::uint32_t bits :
       {0x00000000U, 0x80000000U, 0x00000001U, 0x80000001U, 0x00007fffU, 0x00008000U, 0x807fffffU, 0x3f808000U,
        0xbf808000U, 0x3f807fffU, 0x3f818000U, 0x7f7fffffU, 0xff7f8000U, 0x7f800000U, 0x7fc00000U, 0xff800001U}) {
    values.push_back(std::bit_cast<float>(bits));
  }
  return values;
}

TEST_CASE("bf16 weights with f32 state are exactly AdamW on f32 weights") {
  constexpr std::int64_t kElems = 333;
  const std::vector<float> delicate = delicate_weights();
  for (const SimdLevel level : {SimdLevel::kScalar, supported_simd_level()}) {
    for (const double lr : {0.0, 1e-12, 1e-3}) {
      Parameters f32(kFormats[0], kElems);
      Parameters split(kFormats[1], kElems);
      for (Parameters* p : {&f32, &split}) {
        p->fill();
        for (std::size_t i = 0; i < delicate.size(); ++i) p->set_weight(static_cast<std::int64_t>(i) * 20, delicate[i]);
      }
      for (std::int64_t step = 1; step <= 150; ++step) {
        const float scale = step % 2 == 0 ? 0.3F : 1.0F;
        for (std::int64_t i = 0; i < kElems; ++i) {
          const float gradient = i % 40 == 0 ? 0 : to_f32(to_bf16(noise(i, step)));
          f32.set_gradient(i, scale * gradient);
          split.set_gradient(i, gradient);
        }
        AdamwScalars scalars = adamw_scalars({0.9, 0.999, 1e-8, 0.1}, lr, step, true);
        adamw_update(f32.range(), scalars, level);
        scalars.gradient_scale = scale;
        adamw_update(split.range(), scalars, level);
      }
      std::int64_t n_different = 0;
      for (std::int64_t i = 0; i < kElems; ++i) {
        const auto bits = [](float value) { return std::bit_cast<std::uint32_t>(value); };
        n_different += bits(f32.weight(i)) != bits(split.weight(i)) || bits(f32.m(i)) != bits(split.m(i)) ||
                       bits(f32.v(i)) != bits(split.v(i));
      }
      INFO(to_string(level) << ", lr " << lr);
      CHECK(n_different == 0);
    }
  }
}

TEST_CASE("nearest bf16 state is an exact update rounded once, from unrounded moments") {
  constexpr std::int64_t kElems = 4096;
  const double lr = 0.5;  // weights start at 0, so every bit of the moments shows in them
  const AdamwOptions options;
  Parameters got(kFormats[2], kElems);
  for (std::int64_t i = 0; i < kElems; ++i) {
    got.set_weight(i, 0);
    got.set_m(i, noise(i, 1));
    got.set_v(i, std::abs(noise(i, 2)));
    got.set_gradient(i, noise(i, 3));
  }
  Parameters before = got;
  adamw_update(got.range(), scalars_of(kFormats[2], options, lr, 3), simd_level());
  int n_different = 0;
  int largest = 0;
  const auto compare = [&](float value, double exact) {
    const int ulps = std::abs(to_bf16(value).bits - to_bf16(static_cast<float>(exact)).bits);
    n_different += ulps != 0;
    largest = std::max(largest, ulps);
  };
  for (std::int64_t i = 0; i < kElems; ++i) {
    const double g = to_f32(to_bf16(noise(i, 3)));
    const double m = options.beta1 * before.m(i) + (1 - options.beta1) * g;
    const double v = options.beta2 * before.v(i) + (1 - options.beta2) * g * g;
    const double denom = std::sqrt(v) / std::sqrt(1 - std::pow(options.beta2, 3)) + options.eps;
    compare(got.m(i), m);
    compare(got.v(i), v);
    compare(got.weight(i), -lr / (1 - std::pow(options.beta1, 3)) * m / denom);
  }
  // f32 inside against f64: a result on the other side of a rounding boundary, about 2^-15 of them.
  CHECK(n_different <= 3 * kElems / 1000);
  CHECK(largest <= 1);
}

TEST_CASE("the first step moves each weight by the learning rate, whatever the gradient's size") {
  Parameters p(kFormats[0], 12);
  p.fill();
  p.fill_gradient(1);
  const AdamwScalars scalars = adamw_scalars({0.9, 0.999, 0, 0}, 0.25, 1, true);
  adamw_update(p.range(), scalars, SimdLevel::kScalar);
  for (std::int64_t i = 0; i < 12; ++i) {
    CHECK(std::abs(p.weight(i) - noise(i, 0) + std::copysign(0.25F, noise(i, 1))) < 1e-6F);
  }
}

TEST_CASE("scalars follow the step counter, and decay where it applies") {
  const AdamwOptions options{0.9, 0.99, 1e-6, 0.5};
  const AdamwScalars first = adamw_scalars(options, 0.1, 1, true);
  CHECK(first.step_size == static_cast<float>(0.1 / (1 - 0.9)));
  CHECK(first.inverse_sqrt_correction2 == static_cast<float>(1 / std::sqrt(1 - 0.99)));
  CHECK(first.one_minus_beta2 == static_cast<float>(1 - 0.99));
  CHECK(first.decay == 0.95F);
  CHECK(adamw_scalars(options, 0.1, 1, false).decay == 1.0F);
  const AdamwScalars late = adamw_scalars(options, 0.1, 1'000'000, true);
  CHECK(late.step_size == 0.1F);
  CHECK(late.inverse_sqrt_correction2 == 1.0F);
  CHECK(late.gradient_scale == 1.0F);
}

TEST_CASE("an AdamW step below 1 is refused") {
  CHECK(contains(error_of([] { adamw_scalars({}, 0.1, 0, true); }), "adamw step is 0: expected 1 or more"));
}

TEST_CASE("AdamW refuses weights that are not floating point") {
  AdamwRange range;
  range.dtype = DType::kI32;
  CHECK(contains(error_of([&] { adamw_update(range, {}, SimdLevel::kScalar); }), "type i32: expected f32 or bf16"));
}

TEST_CASE("AdamW refuses a negative size") {
  AdamwRange range;
  range.n = -1;
  CHECK(contains(error_of([&] { adamw_update(range, {}, SimdLevel::kScalar); }), "-1 elements: expected 0 or more"));
}

TEST_CASE("AdamW names a missing array") {
  Parameters p(kFormats[0], 4);
  AdamwRange range = p.range();
  range.v = nullptr;
  CHECK(contains(error_of([&] { adamw_update(range, {}, SimdLevel::kScalar); }), "v missing"));
}

TEST_CASE("AdamW wants the low half for bf16 weights with f32 or mixed state, and for no others") {
  Parameters split(kFormats[1], 4);
  AdamwRange range = split.range();
  std::int16_t* low = range.weight_low;
  range.weight_low = nullptr;
  CHECK(contains(error_of([&] { adamw_update(range, {}, SimdLevel::kScalar); }), "has no weight_low"));
  range.state = OptimizerState::kMixed;
  CHECK(contains(error_of([&] { adamw_update(range, {}, SimdLevel::kScalar); }), "has no weight_low"));
  range.weight_low = low;
  range.state = OptimizerState::kBf16;
  CHECK(contains(error_of([&] { adamw_update(range, {}, SimdLevel::kScalar); }), "has a weight_low"));
}

TEST_CASE("AdamW refuses a level that the CPU lacks") {
  if (supported_simd_level() == SimdLevel::kAvx512) {
    WARN("this CPU has every level: nothing to refuse");
    return;
  }
  const std::string message = error_of([] { adamw_update({}, {}, SimdLevel::kAvx512); });
  CHECK(contains(message, "asked to run at avx512, but this CPU supports"));
}

}  // namespace
}  // namespace ferry
