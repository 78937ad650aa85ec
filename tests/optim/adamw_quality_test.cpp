// SPDX-License-Identifier: Apache-2.0
// What each state format costs in final loss: a noisy quadratic and a small network, 2,000 steps of AdamW each.
// docs/numerics.md has the results: ferry_test_optim_quality -s prints them.
#include <cmath>
#include <cstdint>
#include <vector>

#include "catch.h"
#include "core/rng.h"
#include "optim/adamw.h"
#include "test_util.h"

namespace ferry {
namespace {

using test::Format;
using test::kFormats;
using test::Parameters;
using test::scalars_of;

constexpr std::int64_t kSteps = 2000;
constexpr std::uint64_t kSeeds = 4;

/// What the model reads: the streamed bf16 half of a split master.
float streamed(Parameters& p, std::int64_t i) {
  const AdamwRange range = p.range();
  return range.dtype == DType::kF32 ? p.weight(i) : to_f32(static_cast<const Bf16*>(range.weight)[i]);
}

/// Falls linearly to 0.
double falling(double lr, std::int64_t number) { return lr * (1 - static_cast<double>(number - 1) / kSteps); }

void step(Parameters& p, const Format& format, double lr, std::int64_t number) {
  adamw_update(p.range(), scalars_of(format, {}, lr, number), simd_level());
}

void start_at_zero(Parameters& p, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    p.set_weight(i, 0);
    p.set_m(i, 0);
    p.set_v(i, 0);
  }
}

/// How a quadratic is learned: from 0, or from near its minimum at a constant small learning rate, as a model that has
/// been trained before.
enum class Course { kFromZero, kFineTuning };

/// mean of h (w - t)^2 / 2 with curvatures h of 1e-3 to 1 and targets about 1; each gradient has noise of deviation
/// 0.1, more than most slopes near the end.
double quadratic_loss(Course course, const Format& format, std::uint64_t seed) {
  constexpr std::int64_t kElems = 512;
  const CounterRng targets(seed, "targets"), noise(seed, "noise"), starts(seed, "starts");
  Parameters p(format, kElems);
  start_at_zero(p, kElems);
  const auto curvature = [](std::int64_t i) { return std::pow(10.0, -3.0 * static_cast<double>(i) / kElems); };
  const auto target = [&](std::int64_t i) { return 1 + 0.5 * targets.normal(static_cast<std::uint64_t>(i)); };
  for (std::int64_t i = 0; i < kElems && course == Course::kFineTuning; ++i) {
    p.set_weight(i, static_cast<float>(target(i) + 0.05 * starts.normal(static_cast<std::uint64_t>(i))));
  }
  for (std::int64_t number = 1; number <= kSteps; ++number) {
    for (std::int64_t i = 0; i < kElems; ++i) {
      const auto draw = static_cast<std::uint64_t>(number * kElems + i);
      p.set_gradient(i, static_cast<float>(curvature(i) * (streamed(p, i) - target(i)) + 0.1 * noise.normal(draw)));
    }
    step(p, format, course == Course::kFineTuning ? 1e-4 : falling(3e-3, number), number);
  }
  double loss = 0;
  for (std::int64_t i = 0; i < kElems; ++i) loss += curvature(i) * std::pow(streamed(p, i) - target(i), 2) / 2;
  return loss / kElems;
}

/// y = b . tanh(A x), A: (kHidden, kInputs), b: (kHidden).
struct Network {
  static constexpr int kInputs = 8, kHidden = 32, kWeights = kHidden * (kInputs + 1);
  std::vector<double> w = std::vector<double>(kWeights);

  double forward(const std::vector<double>& x, std::vector<double>& hidden) const {
    double y = 0;
    for (std::size_t h = 0; h < kHidden; ++h) {
      double sum = 0;
      for (std::size_t i = 0; i < kInputs; ++i) sum += w[h * kInputs + i] * x[i];
      hidden[h] = std::tanh(sum);
      y += w[kHidden * kInputs + h] * hidden[h];
    }
    return y;
  }
  void add_gradient(const std::vector<double>& x, const std::vector<double>& hidden, double d_y,
                    std::vector<double>& d_w) const {
    for (std::size_t h = 0; h < kHidden; ++h) {
      d_w[kHidden * kInputs + h] += d_y * hidden[h];
      const double d_sum = d_y * w[kHidden * kInputs + h] * (1 - hidden[h] * hidden[h]);
      for (std::size_t i = 0; i < kInputs; ++i) d_w[h * kInputs + i] += d_sum * x[i];
    }
  }
};

/// Squared error of a network that learns another one from noisy examples, over examples without noise.
double network_loss(const Format& format, std::uint64_t seed) {
  constexpr int kBatch = 16, kTests = 1024;
  const CounterRng weights(seed, "weights"), inputs(seed, "inputs"), noise(seed, "noise");
  Network teacher, student;
  Parameters p(format, Network::kWeights);
  start_at_zero(p, Network::kWeights);
  for (std::int64_t i = 0; i < Network::kWeights; ++i) {
    const double scale = i < Network::kHidden * Network::kInputs ? 0.35 : 0.18;  // one over the root of the fan-in
    teacher.w[static_cast<std::size_t>(i)] = 2 * scale * weights.normal(static_cast<std::uint64_t>(i));
    p.set_weight(i, static_cast<float>(scale * weights.normal(static_cast<std::uint64_t>(i + Network::kWeights))));
  }
  const auto read = [&] {
    for (std::int64_t i = 0; i < Network::kWeights; ++i) student.w[static_cast<std::size_t>(i)] = streamed(p, i);
  };
  std::vector<double> x(Network::kInputs), hidden(Network::kHidden);
  const auto example = [&](std::int64_t index) {
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = inputs.normal(static_cast<std::uint64_t>(index) * 8 + i);
    return teacher.forward(x, hidden);
  };
  for (std::int64_t number = 1; number <= kSteps; ++number) {
    read();
    std::vector<double> d_w(Network::kWeights);
    for (std::int64_t b = 0; b < kBatch; ++b) {
      const std::int64_t index = kTests + number * kBatch + b;
      const double want = example(index) + 0.3 * noise.normal(static_cast<std::uint64_t>(index));
      const double error = student.forward(x, hidden) - want;
      student.add_gradient(x, hidden, 2 * error / kBatch, d_w);
    }
    for (std::int64_t i = 0; i < Network::kWeights; ++i) {
      p.set_gradient(i, static_cast<float>(d_w[static_cast<std::size_t>(i)]));
    }
    step(p, format, falling(3e-3, number), number);
  }
  read();
  double loss = 0;
  for (std::int64_t index = 0; index < kTests; ++index) {
    const double want = example(index);
    loss += std::pow(student.forward(x, hidden) - want, 2) / kTests;
  }
  return loss;
}

/// Mean losses over seeds, relative to exact f32 weights and moments.
struct RelativeLosses {
  double split_f32, bf16_nearest, bf16_stochastic, mixed_nearest, mixed_stochastic;
};

template <class Loss>
RelativeLosses relative_losses(const Loss& loss) {
  std::vector<double> sums;
  for (const Format& format : kFormats) {
    double sum = 0;
    for (std::uint64_t seed = 0; seed < kSeeds; ++seed) sum += loss(format, seed);
    sums.push_back(sum);
    UNSCOPED_INFO(format.name << ": loss " << sum / kSeeds << ", " << 100 * (sum / sums.front() - 1) << " % above f32");
  }
  const auto relative = [&sums](std::size_t i) { return sums[i] / sums[0]; };
  return {relative(1), relative(2), relative(3), relative(4), relative(5)};
}

TEST_CASE("a noisy quadratic: mixed state costs nothing, stochastic bf16 state little, nearest much") {
  const RelativeLosses loss = relative_losses(
      [](const Format& format, std::uint64_t seed) { return quadratic_loss(Course::kFromZero, format, seed); });
  CHECK(std::abs(loss.split_f32 - 1) < 0.005);
  CHECK(std::abs(loss.mixed_stochastic - 1) < 0.01);
  CHECK(loss.mixed_nearest > 1.02);
  CHECK(loss.bf16_stochastic < 1.05);
  CHECK(loss.bf16_nearest > 2);
}

TEST_CASE("a quadratic near its minimum: mixed state costs nothing, bf16 state something") {
  const RelativeLosses loss = relative_losses(
      [](const Format& format, std::uint64_t seed) { return quadratic_loss(Course::kFineTuning, format, seed); });
  CHECK(std::abs(loss.split_f32 - 1) < 0.03);
  CHECK(std::abs(loss.mixed_stochastic - 1) < 0.03);
  CHECK(loss.mixed_nearest > 1.02);
  CHECK(loss.bf16_stochastic > 1.05);
  CHECK(loss.bf16_stochastic < 1.4);
  CHECK(loss.bf16_nearest > 2);
}

TEST_CASE("a small network: mixed state costs nothing, stochastic bf16 state little, nearest much") {
  const RelativeLosses loss = relative_losses(network_loss);
  CHECK(std::abs(loss.split_f32 - 1) < 0.01);
  CHECK(std::abs(loss.mixed_stochastic - 1) < 0.01);
  CHECK(loss.mixed_nearest > 1.02);
  CHECK(loss.bf16_stochastic < 1.05);
  CHECK(loss.bf16_nearest > 1.5);
}

}  // namespace
}  // namespace ferry
