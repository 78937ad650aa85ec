// SPDX-License-Identifier: Apache-2.0
// The same bits in every run, for any number of threads, alignment, stride and permitted aliasing.
#include "catch.h"
#include "ops/bound_op.h"
#include "ops/op_runners.h"

namespace ferry::test {
namespace {

using Bits = std::map<std::string, std::vector<std::uint32_t>>;
using Shapes = std::map<std::string, std::vector<std::int64_t>>;

/// An op on random inputs: how it is made, and what it reads or writes.
template <class Args>
struct Scenario {
  Args args;
  Shapes shapes;
  DType dtype;
  std::map<std::string, DType> other_dtypes;
};

template <class Args>
Tensors make_tensors(const Scenario<Args>& s, Placement placement) {
  Tensors tensors;
  for (const auto& [name, shape] : s.shapes) {
    const auto other = s.other_dtypes.find(name);
    const DType dtype = other == s.other_dtypes.end() ? s.dtype : other->second;
    const bool compact = placement == Placement::kStrided && !may_be_strided(Args::kName, name);
    const double scale = name == "lse" ? 0.01 : 1;
    tensors[name] = random_tensor(dtype, shape, name, scale, compact ? Placement::kOffset : placement);
    if (dtype == DType::kI32) tensors[name].set(std::vector<double>(shape[0], 3));
  }
  return tensors;
}

/// Bits of what an op wrote.
template <class Args>
Bits bits_of(const Args& args, const Tensors& tensors) {
  Bits bits;
  args.visit([&](Access access, const char* name, const TensorView& view) {
    if (access != Access::kRead && view) bits[name] = tensors.at(name).bits();
  });
  return bits;
}

template <class Args>
Tensors run(const Scenario<Args>& s, const OpRunner& runner, Placement placement) {
  const Tensors tensors = make_tensors(s, placement);
  Args args = s.args;
  bind_tensors(args, tensors);
  runner.run(args);
  return tensors;
}

template <class Args>
Bits run_bits(const Scenario<Args>& s, const OpRunner& runner, Placement placement) {
  Args args = s.args;
  const Tensors tensors = run(s, runner, placement);
  bind_tensors(args, tensors);
  return bits_of(args, tensors);
}

/// What is left to ask of a library: outputs as close to each other as to a reference.
template <class Args>
void check_close(const Scenario<Args>& s, const OpRunner& runner, Placement placement) {
  Args args = s.args;
  const Tensors want = run(s, runner, Placement::kAligned);
  const Tensors got = run(s, runner, placement);
  bind_tensors(args, want);
  args.visit([&](Access access, const char* name, const TensorView& view) {
    INFO(name);
    if (access != Access::kRead && view) {
      CHECK(difference(runner.name, Args::kName, got.at(name), want.at(name).values()) == "");
    }
  });
}

template <class Args>
void check_same_bits(const std::vector<std::vector<OpRunner>>& groups, const Scenario<Args>& s) {
  for (const std::vector<OpRunner>& group : groups) {
    INFO(Args::kName << " " << to_string(s.dtype) << " " << group[0].name << " " << s.shapes.begin()->second[0]);
    const Bits want = run_bits(s, group[0], Placement::kAligned);
    REQUIRE(!want.empty());
    for (std::size_t i = 1; i < group.size(); ++i) CHECK((run_bits(s, group[i], Placement::kAligned) == want));
    for (const Placement placement : {Placement::kOffset, Placement::kStrided}) {
      INFO(to_string(placement));
      if (is_by_library(group[0], Args::kName)) {
        check_close(s, group[0], placement);
      } else {
        CHECK((run_bits(s, group[0], placement) == want));
      }
    }
  }
}

}  // namespace

TEST_CASE("bits do not depend on the run, threads, alignment or strides", FERRY_OP_TAGS) {
  const std::vector<std::vector<OpRunner>> groups = equal_runners();
  constexpr DType kF32 = DType::kF32;
  constexpr DType kI32 = DType::kI32;
  for (const DType dtype : {kF32, DType::kBf16}) {
    const std::vector<std::int64_t> rows = {301, 177};
    const std::vector<std::int64_t> heads = {2, 97, 4, 24};
    const std::vector<std::int64_t> kv_heads = {2, 97, 2, 24};
    Matmul transposed;
    transposed.transpose_a = true;
    AttentionBackward scaled;
    scaled.scale = 0.2F;
    RmsNormBackward accumulating;
    accumulating.accumulate = true;
    check_same_bits<Matmul>(groups, {{}, {{"a", {301, 190}}, {"b", {190, 177}}, {"c", rows}, {"d", rows}}, dtype, {}});
    check_same_bits<Matmul>(groups, {transposed, {{"a", {700, 65}}, {"b", {700, 31}}, {"d", {65, 31}}}, dtype, {}});
    check_same_bits<Matmul>(groups, {{}, {{"a", {1, 1190}}, {"b", {1190, 300}}, {"d", {1, 300}}}, dtype, {}});
    check_same_bits<Matmul>(groups, {{}, {{"a", {3, 5}}, {"b", {5, 7}}, {"d", {3, 7}}}, dtype, {}});
    check_same_bits<Matmul>(groups, {{}, {{"a", {1, 1190}}, {"b", {1190, 1}}, {"d", {1, 1}}}, dtype, {}});
    check_same_bits<AttentionForward>(
        groups, {{},
                 {{"q", heads}, {"k", kv_heads}, {"v", kv_heads}, {"o", heads}, {"lse", {2, 4, 97}}},
                 dtype,
                 {{"lse", kF32}}});
    check_same_bits<AttentionBackward>(groups, {scaled,
                                                {{"q", heads},
                                                 {"k", kv_heads},
                                                 {"v", kv_heads},
                                                 {"o", heads},
                                                 {"d_o", heads},
                                                 {"lse", {2, 4, 97}},
                                                 {"d_q", heads},
                                                 {"d_k", kv_heads},
                                                 {"d_v", kv_heads}},
                                                dtype,
                                                {{"lse", kF32}}});
    check_same_bits<RmsNormForward>(
        groups, {{},
                 {{"x", rows}, {"addend", rows}, {"sum", rows}, {"weight", {177}}, {"y", rows}, {"rstd", {301}}},
                 dtype,
                 {{"rstd", kF32}}});
    check_same_bits<RmsNormBackward>(
        groups, {{},
                 {{"d_y", rows}, {"x", rows}, {"weight", {177}}, {"rstd", {301}}, {"d_x", rows}, {"d_weight", {177}}},
                 dtype,
                 {{"rstd", kF32}}});
    check_same_bits<RmsNormBackward>(
        groups, {accumulating,
                 {{"d_y", rows}, {"x", rows}, {"weight", {177}}, {"rstd", {301}}, {"d_x", rows}, {"d_weight", {177}}},
                 dtype,
                 {{"rstd", kF32}, {"d_weight", kF32}}});
    check_same_bits<SwigluForward>(groups, {{}, {{"gate", rows}, {"up", rows}, {"y", rows}}, dtype, {}});
    check_same_bits<SwigluBackward>(
        groups,
        {{}, {{"d_y", rows}, {"gate", rows}, {"up", rows}, {"d_gate", rows}, {"d_up", rows}, {"y", rows}}, dtype, {}});
    check_same_bits<Rope>(
        groups, {{}, {{"x", heads}, {"cos", {97, 12}}, {"sin", {97, 12}}}, dtype, {{"cos", kF32}, {"sin", kF32}}});
    check_same_bits<CrossEntropyChunk>(groups,
                                       {{},
                                        {{"logits", rows}, {"targets", {301}}, {"lse", {301}}, {"target_logit", {301}}},
                                        dtype,
                                        {{"targets", kI32}, {"lse", kF32}, {"target_logit", kF32}}});
    check_same_bits<CrossEntropyBackward>(
        groups,
        {{}, {{"logits", rows}, {"targets", {301}}, {"lse", {301}}}, dtype, {{"targets", kI32}, {"lse", kF32}}});
    check_same_bits<SumOfSquares>(groups, {{}, {{"x", {150001}}, {"y", {1}}}, dtype, {{"y", kF32}}});
    check_same_bits<Cast>(groups, {{}, {{"x", {50001}}, {"y", {50001}}}, dtype, {{"y", kF32}}});
  }
}

namespace {

using Way = std::vector<std::pair<const char*, const char*>>;  // (output, the input in whose place it is)

/// Runs with outputs in the places of inputs.
template <class Args>
void check_way(const Scenario<Args>& s, const OpRunner& runner, const Tensors& want, const Way& way) {
  Scenario<Args> aliased = s;
  for (const auto& [output, input] : way) aliased.shapes.erase(output);
  const Tensors tensors = make_tensors(aliased, Placement::kOffset);
  Args args = s.args;
  bind_tensors(args, tensors);
  for (const auto& [output, input] : way) {
    const std::string wanted = output;
    const TensorView shared = tensors.at(input).view();
    std::as_const(args).visit([&](Access, const char* name, const TensorView& view) {
      if (name == wanted) const_cast<TensorView&>(view) = shared;
    });
  }
  runner.run(args);
  for (const auto& [output, input] : way) {
    INFO(Args::kName << ": " << output << " is " << input << ", " << runner.name << " " << to_string(s.dtype));
    if (is_by_library(runner, Args::kName)) {
      CHECK(difference(runner.name, Args::kName, tensors.at(input), want.at(output).values()) == "");
    } else {
      CHECK(same_bits(tensors.at(input), want.at(output)));
    }
  }
}

template <class Args>
void check_aliasing(const std::vector<OpRunner>& runners, const Scenario<Args>& s, const std::vector<Way>& ways) {
  for (const OpRunner& runner : runners) {
    const Tensors want = run(s, runner, Placement::kOffset);
    for (const Way& way : ways) check_way(s, runner, want, way);
  }
}

}  // namespace

TEST_CASE("outputs in place of inputs give the same bits, where the contract allows it", FERRY_OP_TAGS) {
  const std::vector<OpRunner> runners = op_runners();
  const std::vector<std::int64_t> rows = {70, 529};
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    check_aliasing<Matmul>(runners, {{}, {{"a", {70, 9}}, {"b", {9, 529}}, {"c", rows}, {"d", rows}}, dtype, {}},
                           {{{"d", "c"}}});
    check_aliasing<RmsNormForward>(
        runners,
        {{},
         {{"x", rows}, {"addend", rows}, {"sum", rows}, {"weight", {529}}, {"y", rows}, {"rstd", {70}}},
         dtype,
         {{"rstd", DType::kF32}}},
        {{{"y", "x"}}, {{"y", "addend"}}, {{"sum", "x"}}, {{"sum", "addend"}}, {{"sum", "x"}, {"y", "addend"}}});
    check_aliasing<RmsNormBackward>(runners,
                                    {{},
                                     {{"d_y", rows},
                                      {"x", rows},
                                      {"weight", {529}},
                                      {"rstd", {70}},
                                      {"d_residual", rows},
                                      {"d_x", rows},
                                      {"d_weight", {529}}},
                                     dtype,
                                     {{"rstd", DType::kF32}}},
                                    {{{"d_x", "d_y"}}, {{"d_x", "d_residual"}}});
    check_aliasing<SwigluForward>(runners, {{}, {{"gate", rows}, {"up", rows}, {"y", rows}}, dtype, {}},
                                  {{{"y", "gate"}}, {{"y", "up"}}});
    check_aliasing<SwigluBackward>(
        runners,
        {{}, {{"d_y", rows}, {"gate", rows}, {"up", rows}, {"d_gate", rows}, {"d_up", rows}, {"y", rows}}, dtype, {}},
        {{{"d_gate", "gate"}, {"d_up", "up"}, {"y", "d_y"}}, {{"d_gate", "gate"}}, {{"d_up", "up"}}, {{"y", "d_y"}}});
  }
}

}  // namespace ferry::test
