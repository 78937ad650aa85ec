// SPDX-License-Identifier: Apache-2.0
// Every op against PyTorch: both dtypes, odd sizes, aligned, unaligned and strided, on every level and backend.
#include <cstring>
#include <set>

#include "catch.h"
#include "io/safetensors.h"
#include "ops/bound_op.h"
#include "ops/op_runners.h"

namespace ferry::test {
namespace {

DType dtype_of(const SafetensorsEntry& entry) {
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kI32}) {
    if (entry.dtype == safetensors_dtype(dtype)) return dtype;
  }
  throw std::runtime_error("fixture of dtype " + entry.dtype);
}

TestTensor load(const SafetensorsEntry& entry, Placement placement) {
  TestTensor stored(dtype_of(entry), entry.shape);
  std::memcpy(stored.view().data, entry.bytes.data(), entry.bytes.size());
  TestTensor placed(dtype_of(entry), entry.shape, placement);
  placed.set(stored.values());
  return placed;
}

/// One case of a fixture file: see tests/fixtures/make_op_fixtures.py.
struct FixtureCase {
  const SafetensorsFile& file;
  std::string name;

  std::string op() const { return file.metadata().at(name + "/op"); }

  template <class T>
  void scalar(const char* key, T& value) const {
    const auto found = file.metadata().find(name + "/" + key);
    if (found != file.metadata().end()) value = static_cast<T>(std::stod(found->second));
  }

  Tensors tensors(const std::string& prefix, Placement placement) const {
    Tensors result;
    const std::string start = name + "/" + prefix + ".";
    for (const SafetensorsEntry& entry : file.entries()) {
      if (entry.name.compare(0, start.size(), start) != 0) continue;
      const std::string tensor = entry.name.substr(start.size());
      const bool compact = placement == Placement::kStrided && !may_be_strided(op(), tensor);
      result.emplace(tensor, load(entry, compact ? Placement::kAligned : placement));
    }
    return result;
  }
};

template <class Args>
void set_scalars(Args& args, const FixtureCase& fixture) {
  if constexpr (requires { args.eps; }) fixture.scalar("eps", args.eps);
  if constexpr (requires { args.scale; }) fixture.scalar("scale", args.scale);
  if constexpr (requires { args.inverse; }) fixture.scalar("inverse", args.inverse);
  if constexpr (requires { args.first_token; }) fixture.scalar("first_token", args.first_token);
  if constexpr (requires { args.transpose_a; }) fixture.scalar("transpose_a", args.transpose_a);
  if constexpr (requires { args.accumulate; }) fixture.scalar("accumulate", args.accumulate);
  if constexpr (requires { args.transpose_b; }) fixture.scalar("transpose_b", args.transpose_b);
}

template <class Args>
void run_case(const FixtureCase& fixture, Placement placement, const OpRunner& runner) {
  INFO(fixture.name << ", " << to_string(placement) << ", " << runner.name);
  const Tensors want = fixture.tensors("out", Placement::kAligned);
  Tensors tensors = fixture.tensors("in", placement);
  for (const auto& [name, expected] : want) {
    const bool compact = placement == Placement::kStrided && !may_be_strided(Args::kName, name);
    const TensorView& view = expected.view();
    tensors.try_emplace(name, view.dtype, std::vector<std::int64_t>(view.shape.begin(), view.shape.begin() + view.rank),
                        compact ? Placement::kAligned : placement);
  }
  Args args;
  set_scalars(args, fixture);
  bind_tensors(args, tensors);
  runner.run(args);
  for (const auto& [name, expected] : want) {
    INFO(name);
    CHECK(difference(runner.name, Args::kName, tensors.at(name), expected.values()) == "");
  }
  for (const auto& [name, tensor] : tensors) {
    INFO(name);
    CHECK(tensor.surroundings_untouched());
  }
}

/// Runs the case as the op of that name.
template <class... Args>
bool dispatch(std::variant<Args...>*, const FixtureCase& fixture, Placement placement, const OpRunner& runner) {
  return ((fixture.op() == Args::kName && (run_case<Args>(fixture, placement, runner), true)) || ...);
}

std::set<std::string> case_names(const SafetensorsFile& file) {
  std::set<std::string> names;
  for (const SafetensorsEntry& entry : file.entries()) names.insert(entry.name.substr(0, entry.name.find('/')));
  return names;
}

void run_file(const std::string& dtype) {
  const SafetensorsFile file(std::string(FERRY_FIXTURES) + "/ops/" + dtype + ".safetensors");
  const std::vector<OpRunner> runners = op_runners();
  std::set<std::string> ops;
  for (const std::string& name : case_names(file)) {
    const FixtureCase fixture = {file, name};
    ops.insert(fixture.op());
    for (const OpRunner& runner : runners) {
      for (const Placement placement : {Placement::kAligned, Placement::kOffset, Placement::kStrided}) {
        CHECK(dispatch(static_cast<Op*>(nullptr), fixture, placement, runner));
      }
    }
  }
  CHECK(ops.size() == std::variant_size_v<Op> - 1);  // AdamW has fixtures of its own in tests/optim
}

}  // namespace

TEST_CASE("f32 ops match PyTorch", FERRY_OP_TAGS) { run_file("f32"); }
TEST_CASE("bf16 ops match PyTorch", FERRY_OP_TAGS) { run_file("bf16"); }

}  // namespace ferry::test
