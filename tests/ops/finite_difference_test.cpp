// SPDX-License-Identifier: Apache-2.0
// Each backward op in f32 against central differences of its forward formula in f64.
#include <cmath>
#include <functional>

#include "catch.h"
#include "ops/bound_op.h"
#include "ops/op_runners.h"
#include "ops/reference.h"

namespace ferry::test {
namespace {

/// Gradient of f at x, each component by a central difference. Error about 1e-8 for values of order 1.
Values gradient(const std::function<double(const Values&)>& f, Values x) {
  constexpr double kStep = 1e-5;
  Values result(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double kept = x[i];
    x[i] = kept + kStep;
    const double above = f(x);
    x[i] = kept - kStep;
    result[i] = (above - f(x)) / (2 * kStep);
    x[i] = kept;
  }
  return result;
}

double dot(const Values& a, const Values& b) {
  double total = 0;
  for (std::size_t i = 0; i < a.size(); ++i) total += a[i] * b[i];
  return total;
}

constexpr DType kF32 = DType::kF32;

}  // namespace

TEST_CASE("rmsnorm backward is the derivative of its forward", FERRY_OP_TAGS) {
  for (const OpRunner& runner : op_runners()) {
    INFO(runner.name);
    Tensors t = {{"x", random_tensor(kF32, {3, 19}, "x")},
                 {"weight", random_tensor(kF32, {19}, "weight")},
                 {"d_y", random_tensor(kF32, {3, 19}, "dy")},
                 {"y", TestTensor(kF32, {3, 19})},
                 {"rstd", TestTensor(kF32, {3})},
                 {"d_x", TestTensor(kF32, {3, 19})},
                 {"d_weight", TestTensor(kF32, {19})}};
    RmsNormForward forward;
    bind_tensors(forward, t);
    runner.run(forward);
    RmsNormBackward backward;
    bind_tensors(backward, t);
    runner.run(backward);
    const Values x = t["x"].values();
    const Values weight = t["weight"].values();
    const Values d_y = t["d_y"].values();
    const auto of_x = [&](const Values& v) { return dot(d_y, rmsnorm_reference(v, weight, forward.eps)); };
    const auto of_weight = [&](const Values& v) { return dot(d_y, rmsnorm_reference(x, v, forward.eps)); };
    CHECK(difference(runner.name, RmsNormBackward::kName, t["d_x"], gradient(of_x, x)) == "");
    CHECK(difference(runner.name, RmsNormBackward::kName, t["d_weight"], gradient(of_weight, weight)) == "");
  }
}

TEST_CASE("swiglu backward is the derivative of its forward", FERRY_OP_TAGS) {
  for (const OpRunner& runner : op_runners()) {
    INFO(runner.name);
    Tensors t = {{"gate", random_tensor(kF32, {2, 37}, "gate", 2)},
                 {"up", random_tensor(kF32, {2, 37}, "up")},
                 {"d_y", random_tensor(kF32, {2, 37}, "dy")},
                 {"d_gate", TestTensor(kF32, {2, 37})},
                 {"d_up", TestTensor(kF32, {2, 37})}};
    SwigluBackward backward;
    bind_tensors(backward, t);
    runner.run(backward);
    const Values gate = t["gate"].values();
    const Values up = t["up"].values();
    const Values d_y = t["d_y"].values();
    const auto of_gate = [&](const Values& v) { return dot(d_y, swiglu_reference(v, up)); };
    const auto of_up = [&](const Values& v) { return dot(d_y, swiglu_reference(gate, v)); };
    CHECK(difference(runner.name, SwigluBackward::kName, t["d_gate"], gradient(of_gate, gate)) == "");
    CHECK(difference(runner.name, SwigluBackward::kName, t["d_up"], gradient(of_up, up)) == "");
  }
}

TEST_CASE("attention backward is the derivative of its forward, with and without keys before the queries",
          FERRY_OP_TAGS) {
  const std::int64_t length = GENERATE(3, 5);
  const AttentionShape shape = {2, length, 5, 4, 2, 6, 0.5};
  const std::vector<std::int64_t> q_shape = {2, length, 4, 6}, k_shape = {2, 5, 2, 6};
  for (const OpRunner& runner : op_runners()) {
    INFO(runner.name << ", " << length << " queries");
    Tensors t = {{"q", random_tensor(kF32, q_shape, "q")}, {"k", random_tensor(kF32, k_shape, "k")},
                 {"v", random_tensor(kF32, k_shape, "v")}, {"d_o", random_tensor(kF32, q_shape, "do")},
                 {"o", TestTensor(kF32, q_shape)},         {"lse", TestTensor(kF32, {2, 4, length})},
                 {"d_q", TestTensor(kF32, q_shape)},       {"d_k", TestTensor(kF32, k_shape)},
                 {"d_v", TestTensor(kF32, k_shape)}};
    AttentionForward forward;
    forward.scale = 0.5F;
    bind_tensors(forward, t);
    runner.run(forward);
    AttentionBackward backward;
    backward.scale = 0.5F;
    bind_tensors(backward, t);
    runner.run(backward);
    const Values q = t["q"].values();
    const Values k = t["k"].values();
    const Values v = t["v"].values();
    const Values d_o = t["d_o"].values();
    const auto of_q = [&](const Values& x) { return dot(d_o, attention_reference(shape, x, k, v).o); };
    const auto of_k = [&](const Values& x) { return dot(d_o, attention_reference(shape, q, x, v).o); };
    const auto of_v = [&](const Values& x) { return dot(d_o, attention_reference(shape, q, k, x).o); };
    CHECK(difference(runner.name, AttentionBackward::kName, t["d_q"], gradient(of_q, q)) == "");
    CHECK(difference(runner.name, AttentionBackward::kName, t["d_k"], gradient(of_k, k)) == "");
    CHECK(difference(runner.name, AttentionBackward::kName, t["d_v"], gradient(of_v, v)) == "");
  }
}

TEST_CASE("cross-entropy backward is the derivative of the mean loss", FERRY_OP_TAGS) {
  const std::vector<std::int32_t> targets = {4, kIgnoreIndex, 0, 22};
  for (const OpRunner& runner : op_runners()) {
    INFO(runner.name);
    Tensors t = {{"logits", random_tensor(kF32, {4, 23}, "logits", 2)},
                 {"targets", TestTensor(DType::kI32, {4})},
                 {"lse", TestTensor(kF32, {4})},
                 {"target_logit", TestTensor(kF32, {4})},
                 {"loss", TestTensor(kF32, {1})}};
    t["targets"].set(Values(targets.begin(), targets.end()));
    const Values logits = t["logits"].values();
    CrossEntropyChunk chunk;
    bind_tensors(chunk, t);
    runner.run(chunk);
    CrossEntropyLoss loss;
    loss.scale = 1.0F / 3;
    bind_tensors(loss, t);
    runner.run(loss);
    CrossEntropyBackward backward;
    backward.scale = 1.0F / 3;
    bind_tensors(backward, t);
    runner.run(backward);
    const auto of_logits = [&](const Values& x) { return cross_entropy_reference(x, targets); };
    CHECK(difference(runner.name, CrossEntropyLoss::kName, t["loss"], Values{of_logits(logits)}) == "");
    CHECK(difference(runner.name, CrossEntropyBackward::kName, t["logits"], gradient(of_logits, logits)) == "");
  }
}

TEST_CASE("inverse rope undoes rope", FERRY_OP_TAGS) {
  for (const OpRunner& runner : op_runners()) {
    INFO(runner.name);
    Tensors t = {{"x", random_tensor(kF32, {2, 3, 2, 10}, "x")},
                 {"cos", TestTensor(kF32, {3, 5})},
                 {"sin", TestTensor(kF32, {3, 5})}};
    Values cos(15);
    Values sin(15);
    for (int i = 0; i < 15; ++i) {
      cos[i] = std::cos(0.7 * i);
      sin[i] = std::sin(0.7 * i);
    }
    t["cos"].set(cos);
    t["sin"].set(sin);
    const Values x = t["x"].values();
    for (const bool inverse : {false, true}) {
      Rope rope;
      rope.inverse = inverse;
      bind_tensors(rope, t);
      runner.run(rope);
    }
    CHECK(difference(runner.name, Rope::kName, t["x"], x) == "");
  }
}

}  // namespace ferry::test
