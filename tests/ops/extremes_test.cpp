// SPDX-License-Identifier: Apache-2.0
// Extreme logits, targets that do not count, infinities and NaN.
#include <cmath>
#include <limits>

#include "catch.h"
#include "ops/bound_op.h"
#include "ops/op_runners.h"

namespace ferry::test {
namespace {

constexpr DType kF32 = DType::kF32;
constexpr double kInf = std::numeric_limits<double>::infinity();

Tensors cross_entropy_tensors(DType dtype, const std::vector<double>& logits, const std::vector<double>& targets) {
  const auto n = static_cast<std::int64_t>(targets.size());
  Tensors t = {{"logits", TestTensor(dtype, {n, static_cast<std::int64_t>(logits.size()) / n})},
               {"targets", TestTensor(DType::kI32, {n})},
               {"lse", TestTensor(kF32, {n})},
               {"target_logit", TestTensor(kF32, {n})},
               {"loss", TestTensor(kF32, {1})}};
  t["logits"].set(logits);
  t["targets"].set(targets);
  return t;
}

template <class Args>
void run(const OpRunner& runner, const Tensors& tensors, Args args = {}) {
  bind_tensors(args, tensors);
  runner.run(args);
}

}  // namespace

TEST_CASE("cross-entropy of extreme logits is finite and exact", FERRY_OP_TAGS) {
  for (const OpRunner& runner : op_runners()) {
    INFO(runner.name);
    const Tensors t = cross_entropy_tensors(kF32, {1e4, -1e4, 0, -1e4, -1e4, -1e4}, {0, 2});
    run<CrossEntropyChunk>(runner, t);
    const std::vector<double> lse = {1e4, static_cast<float>(-1e4 + std::log(3.0))};
    CHECK(t.at("lse").values() == lse);
    run<CrossEntropyBackward>(runner, t);
    const std::vector<double> d_logits = t.at("logits").values();
    CHECK(std::vector<double>(d_logits.begin(), d_logits.begin() + 3) == std::vector<double>{0, 0, 0});
    CHECK(std::abs(d_logits[5] + 2.0 / 3) < 1e-3);
  }
}

TEST_CASE("a chunk lower, higher or as high as those before it updates the log-sum-exp stably", FERRY_OP_TAGS) {
  for (const OpRunner& runner : op_runners()) {
    for (const double before : {-1e4, -3.0, 0.0, 3.0, 1e4}) {
      INFO(runner.name << " " << before);
      const Tensors first = cross_entropy_tensors(kF32, {before, before}, {5});
      run<CrossEntropyChunk>(runner, first);
      Tensors second = cross_entropy_tensors(kF32, {0, 1, 2}, {4});
      second["lse"].set(first.at("lse").values());
      second["target_logit"].set(first.at("target_logit").values());
      CrossEntropyChunk chunk;
      chunk.first_token = 2;
      run(runner, second, chunk);
      const double top = std::max(before, 2.0);
      const double want =
          top + std::log(2 * std::exp(before - top) + std::exp(-top) + std::exp(1 - top) + std::exp(2 - top));
      CHECK(difference(runner.name, CrossEntropyChunk::kName, second.at("lse"), std::vector<double>{want}) == "");
      CHECK(second.at("target_logit").values() == std::vector<double>{2});
    }
  }
}

TEST_CASE("chunks of minus infinity leave the log-sum-exp as it was", FERRY_OP_TAGS) {
  for (const OpRunner& runner : op_runners()) {
    INFO(runner.name);
    Tensors t = cross_entropy_tensors(kF32, {-kInf, -kInf}, {7});
    run<CrossEntropyChunk>(runner, t);
    CHECK(t.at("lse").values() == std::vector<double>{-kInf});
    t["lse"].set(std::vector<double>{1.5});
    CrossEntropyChunk chunk;
    chunk.first_token = 2;
    run(runner, t, chunk);
    CHECK(t.at("lse").values() == std::vector<double>{1.5});
  }
}

TEST_CASE("targets that do not count give no loss and no gradient", FERRY_OP_TAGS) {
  for (const OpRunner& runner : op_runners()) {
    for (const DType dtype : {kF32, DType::kBf16}) {
      INFO(runner.name);
      const Tensors t = cross_entropy_tensors(dtype, {1, 2, 3, 4, 5, 6}, {-100, -100});
      run<CrossEntropyChunk>(runner, t);
      run<CrossEntropyLoss>(runner, t);
      run<CrossEntropyBackward>(runner, t);
      CHECK(t.at("loss").values() == std::vector<double>{0});
      CHECK(t.at("logits").values() == std::vector<double>(6, 0.0));
    }
  }
}

TEST_CASE("NaN logits make the loss NaN", FERRY_OP_TAGS) {
  for (const OpRunner& runner : op_runners()) {
    for (const std::vector<double>& logits :
         {std::vector<double>{NAN, 1, 2}, std::vector<double>{1, NAN, -kInf}, std::vector<double>{NAN, NAN, NAN}}) {
      INFO(runner.name);
      const Tensors t = cross_entropy_tensors(kF32, logits, {2});
      run<CrossEntropyChunk>(runner, t);
      CHECK(std::isnan(t.at("lse").values()[0]));
    }
  }
}

TEST_CASE("attention with extreme scores picks the largest, and NaN stays in its rows", FERRY_OP_TAGS) {
  for (const OpRunner& runner : op_runners()) {
    INFO(runner.name);
    Tensors t = {{"q", TestTensor(kF32, {1, 3, 1, 1})},
                 {"k", TestTensor(kF32, {1, 3, 1, 1})},
                 {"v", TestTensor(kF32, {1, 3, 1, 1})},
                 {"o", TestTensor(kF32, {1, 3, 1, 1})},
                 {"lse", TestTensor(kF32, {1, 1, 3})}};
    t["q"].set(std::vector<double>{1, 1, 1});
    t["k"].set(std::vector<double>{-1e4, 1e4, 0});
    t["v"].set(std::vector<double>{5, 6, 7});
    run<AttentionForward>(runner, t);
    CHECK(t.at("o").values() == std::vector<double>{5, 6, 6});
    CHECK(t.at("lse").values() == std::vector<double>{-1e4, 1e4, 1e4});
    t["k"].set(std::vector<double>{0, NAN, 0});
    run<AttentionForward>(runner, t);
    CHECK(t.at("o").values()[0] == 5);
    CHECK(std::isnan(t.at("o").values()[1]));
    CHECK(std::isnan(t.at("o").values()[2]));
  }
}

TEST_CASE("swiglu saturates without overflow and passes NaN on", FERRY_OP_TAGS) {
  for (const OpRunner& runner : op_runners()) {
    INFO(runner.name);
    Tensors t = {{"gate", TestTensor(kF32, {1, 5})},   {"up", TestTensor(kF32, {1, 5})},
                 {"y", TestTensor(kF32, {1, 5})},      {"d_y", TestTensor(kF32, {1, 5})},
                 {"d_gate", TestTensor(kF32, {1, 5})}, {"d_up", TestTensor(kF32, {1, 5})}};
    t["gate"].set(std::vector<double>{1e4, -1e4, 0, -88.5, NAN});
    t["up"].set(std::vector<double>(5, 2.0));
    t["d_y"].set(std::vector<double>(5, 1.0));
    run<SwigluForward>(runner, t);
    CHECK(difference(runner.name, SwigluForward::kName, t.at("y"), std::vector<double>{2e4, 0, 0, 0, NAN}) == "");
    run<SwigluBackward>(runner, t);
    CHECK(difference(runner.name, SwigluBackward::kName, t.at("d_gate"), std::vector<double>{2, 0, 1, 0, NAN}) == "");
    CHECK(difference(runner.name, SwigluBackward::kName, t.at("d_up"), std::vector<double>{1e4, 0, 0, 0, NAN}) == "");
  }
}

TEST_CASE("casts round to nearest even and keep infinities and NaN", FERRY_OP_TAGS) {
  const std::vector<double> x = {1,
                                 1 + 0x1p-8,
                                 1 + 3 * 0x1p-8,
                                 1 + 0x1p-8 + 0x1p-20,
                                 -1 - 0x1p-8,
                                 std::numeric_limits<float>::max(),
                                 kInf,
                                 -kInf,
                                 NAN,
                                 0x1p-140,
                                 -0.0};
  const std::vector<double> want = {1, 1, 1 + 0x1p-6, 1 + 0x1p-7, -1, kInf, kInf, -kInf, NAN, 0, -0.0};
  for (const OpRunner& runner : op_runners()) {
    INFO(runner.name);
    Tensors t = {{"x", TestTensor(kF32, {11})}, {"y", TestTensor(DType::kBf16, {11})}};
    t["x"].set(x);
    run<Cast>(runner, t);
    std::vector<std::uint32_t> expected;
    for (const double value : x) expected.push_back(to_bf16(static_cast<float>(value)).bits);
    CHECK(t.at("y").bits() == expected);
    const std::vector<double> got = t.at("y").values();
    for (std::size_t i = 0; i < 9; ++i) CHECK(((got[i] == want[i]) || (std::isnan(got[i]) && std::isnan(want[i]))));
  }
}

}  // namespace ferry::test
