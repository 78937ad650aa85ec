// SPDX-License-Identifier: Apache-2.0
// The same bits for any number of threads, alignment, stride and permitted aliasing.
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

template <class Args>
Bits run_bits(const Scenario<Args>& s, SimdLevel level, int n_threads, Placement placement) {
  Tensors tensors = make_tensors(s, placement);
  Args args = s.args;
  bind_tensors(args, tensors);
  run_op(level, n_threads, args);
  Bits bits;
  args.visit([&](Access access, const char* name, const TensorView& view) {
    if (access != Access::kRead && view) bits[name] = tensors[name].bits();
  });
  return bits;
}

template <class Args>
void check_same_bits(const Scenario<Args>& s) {
  for (const SimdLevel level : simd_levels()) {
    INFO(Args::kName << " " << to_string(s.dtype) << " " << to_string(level) << " " << s.shapes.begin()->second[0]);
    const Bits want = run_bits(s, level, 1, Placement::kAligned);
    REQUIRE(!want.empty());
    for (const int n_threads : {2, 5}) CHECK(run_bits(s, level, n_threads, Placement::kAligned) == want);
    for (const Placement placement : {Placement::kOffset, Placement::kStrided}) {
      INFO(to_string(placement));
      CHECK(run_bits(s, level, 2, placement) == want);
    }
  }
}

}  // namespace

TEST_CASE("bits do not depend on threads, alignment or strides") {
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
    check_same_bits<Matmul>({{}, {{"a", {301, 190}}, {"b", {190, 177}}, {"c", rows}, {"d", rows}}, dtype, {}});
    check_same_bits<Matmul>({transposed, {{"a", {700, 65}}, {"b", {700, 31}}, {"d", {65, 31}}}, dtype, {}});
    check_same_bits<Matmul>({{}, {{"a", {1, 1190}}, {"b", {1190, 300}}, {"d", {1, 300}}}, dtype, {}});
    check_same_bits<Matmul>({{}, {{"a", {3, 5}}, {"b", {5, 7}}, {"d", {3, 7}}}, dtype, {}});
    check_same_bits<Matmul>({{}, {{"a", {1, 1190}}, {"b", {1190, 1}}, {"d", {1, 1}}}, dtype, {}});
    check_same_bits<AttentionForward>(
        {{},
         {{"q", heads}, {"k", kv_heads}, {"v", kv_heads}, {"o", heads}, {"lse", {2, 4, 97}}},
         dtype,
         {{"lse", kF32}}});
    check_same_bits<AttentionBackward>({scaled,
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
        {{},
         {{"x", rows}, {"addend", rows}, {"sum", rows}, {"weight", {177}}, {"y", rows}, {"rstd", {301}}},
         dtype,
         {{"rstd", kF32}}});
    check_same_bits<RmsNormBackward>(
        {{},
         {{"d_y", rows}, {"x", rows}, {"weight", {177}}, {"rstd", {301}}, {"d_x", rows}, {"d_weight", {177}}},
         dtype,
         {{"rstd", kF32}}});
    check_same_bits<SwigluForward>({{}, {{"gate", rows}, {"up", rows}, {"y", rows}}, dtype, {}});
    check_same_bits<SwigluBackward>(
        {{}, {{"d_y", rows}, {"gate", rows}, {"up", rows}, {"d_gate", rows}, {"d_up", rows}}, dtype, {}});
    check_same_bits<Rope>(
        {{}, {{"x", heads}, {"cos", {97, 12}}, {"sin", {97, 12}}}, dtype, {{"cos", kF32}, {"sin", kF32}}});
    check_same_bits<CrossEntropyChunk>({{},
                                        {{"logits", rows}, {"targets", {301}}, {"lse", {301}}, {"target_logit", {301}}},
                                        dtype,
                                        {{"targets", kI32}, {"lse", kF32}, {"target_logit", kF32}}});
    check_same_bits<CrossEntropyBackward>(
        {{}, {{"logits", rows}, {"targets", {301}}, {"lse", {301}}}, dtype, {{"targets", kI32}, {"lse", kF32}}});
    check_same_bits<SumOfSquares>({{}, {{"x", {150001}}, {"y", {1}}}, dtype, {{"y", kF32}}});
    check_same_bits<Cast>({{}, {{"x", {50001}}, {"y", {50001}}}, dtype, {{"y", kF32}}});
  }
}

namespace {

/// Runs with outputs of their own, then once per pair with output `first` in the place of input `second`.
template <class Args>
void check_aliasing(const Scenario<Args>& s,
                    const std::vector<std::vector<std::pair<const char*, const char*>>>& ways) {
  for (const SimdLevel level : simd_levels()) {
    const Bits want = run_bits(s, level, 2, Placement::kOffset);
    for (const auto& way : ways) {
      Scenario<Args> aliased = s;
      for (const auto& [output, input] : way) aliased.shapes.erase(output);
      Tensors tensors = make_tensors(aliased, Placement::kOffset);
      Args args = s.args;
      bind_tensors(args, tensors);
      for (const auto& [output, input] : way) {
        const char* const wanted = output;
        const TensorView shared = tensors[input].view();
        std::as_const(args).visit([&](Access, const char* name, const TensorView& view) {
          if (std::string(name) == wanted) const_cast<TensorView&>(view) = shared;
        });
      }
      run_op(level, 2, args);
      for (const auto& [output, input] : way) {
        INFO(Args::kName << ": " << output << " is " << input << ", " << to_string(level) << " " << to_string(s.dtype));
        CHECK(tensors[input].bits() == want.at(output));
      }
    }
  }
}

}  // namespace

TEST_CASE("outputs in place of inputs give the same bits, where the contract allows it") {
  const std::vector<std::int64_t> rows = {70, 529};
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    check_aliasing<Matmul>({{}, {{"a", {70, 9}}, {"b", {9, 529}}, {"c", rows}, {"d", rows}}, dtype, {}},
                           {{{"d", "c"}}});
    check_aliasing<RmsNormForward>(
        {{},
         {{"x", rows}, {"addend", rows}, {"sum", rows}, {"weight", {529}}, {"y", rows}, {"rstd", {70}}},
         dtype,
         {{"rstd", DType::kF32}}},
        {{{"y", "x"}}, {{"y", "addend"}}, {{"sum", "x"}}, {{"sum", "addend"}}, {{"sum", "x"}, {"y", "addend"}}});
    check_aliasing<RmsNormBackward>({{},
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
    check_aliasing<SwigluForward>({{}, {{"gate", rows}, {"up", rows}, {"y", rows}}, dtype, {}},
                                  {{{"y", "gate"}}, {{"y", "up"}}});
    check_aliasing<SwigluBackward>(
        {{}, {{"d_y", rows}, {"gate", rows}, {"up", rows}, {"d_gate", rows}, {"d_up", rows}}, dtype, {}},
        {{{"d_gate", "gate"}, {"d_up", "up"}}, {{"d_gate", "gate"}}, {{"d_up", "up"}}});
  }
}

}  // namespace ferry::test
