// SPDX-License-Identifier: Apache-2.0
// The runner that copies tensors to a device and back: what it keeps, and the faults of ops that it finds.
#include "ops/backend_runner.h"

#include <cstdint>
#include <cstring>
#include <stdexcept>

#include "backend/cpu/cpu_backend.h"
#include "catch.h"
#include "ops/test_tensor.h"

namespace ferry::test {
namespace {

/// What the one op of a table does with x, y and its scratch.
using Fault = void (*)(const Cast& op, Scratch scratch);

constexpr std::size_t kScratchBytes = 100;

template <Fault kFault>
void run_fault(const Op& op, Scratch scratch, ThreadPool&) {
  kFault(std::get<Cast>(op), scratch);
}

/// A runner of casts of eight elements that do `kFault` instead.
template <Fault kFault>
OpRunner faulty_runner() {
  static constexpr cpu::OpTable kTable{SimdLevel::kScalar, run_fault<kFault>, [](const Op&) { return kScratchBytes; }};
  return backend_runner(cpu::create_cpu_backend(kTable, cpu::Launch::kInline, {.threads = 1}));
}

template <Fault kFault>
std::string fault_of(const TensorView& x, const TensorView& y) {
  Cast op;
  op.x = x;
  op.y = y;
  try {
    faulty_runner<kFault>().run(op);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

void move_all(const Cast& op, Scratch) { std::memmove(op.y.data, op.x.data, 32); }
void write_input(const Cast& op, Scratch) { op.x.as<float>()[3] = 1; }
void write_behind(const Cast& op, Scratch) { op.y.as<float>()[8] = 1; }
void write_before(const Cast& op, Scratch) { op.y.as<float>()[-1] = 1; }
void write_behind_scratch(const Cast&, Scratch scratch) { static_cast<std::byte*>(scratch.data)[kScratchBytes] = {}; }

/// y = the place of gate in 256 bytes, the distance from gate to up.
void report_places(const Op& op, Scratch, ThreadPool&) {
  const auto& args = std::get<SwigluForward>(op);
  args.y.as<float>()[0] = static_cast<float>(reinterpret_cast<std::uintptr_t>(args.gate.data) % 256);
  args.y.as<float>()[1] = static_cast<float>(args.up.as<float>() - args.gate.as<float>());
}

}  // namespace

TEST_CASE("a runner brings back what an op wrote") {
  const TestTensor x = random_tensor(DType::kF32, {8}, "x", 1, Placement::kOffset);
  const TestTensor y(DType::kF32, {8});
  CHECK(fault_of<move_all>(x.view(), y.view()) == "");
  CHECK(y.bits() == x.bits());
  CHECK(y.surroundings_untouched());
}

TEST_CASE("a runner keeps alignment, and the distance of views of one buffer") {
  static constexpr cpu::OpTable kTable{SimdLevel::kScalar, report_places, [](const Op&) { return std::size_t{0}; }};
  const TestTensor fused = random_tensor(DType::kF32, {3, 4}, "fused", 1, Placement::kOffset);
  const TestTensor y(DType::kF32, {3, 2});
  SwigluForward op;
  op.gate = fused.view().columns(0, 2);
  op.up = fused.view().columns(2, 2);
  op.y = y.view();
  backend_runner(cpu::create_cpu_backend(kTable, cpu::Launch::kInline, {.threads = 1})).run(op);
  CHECK(y.view().as<float>()[0] == 4);
  CHECK(y.view().as<float>()[1] == 2);
}

TEST_CASE("a runner reports writes where none may be") {
  const TestTensor x = random_tensor(DType::kF32, {8}, "x");
  const TestTensor y(DType::kF32, {8});
  CHECK(fault_of<write_input>(x.view(), y.view()) == "cast changed a tensor that it may only read");
  CHECK(fault_of<write_behind>(x.view(), y.view()) == "cast changed memory beside its tensors");
  CHECK(fault_of<write_before>(x.view(), y.view()) == "cast changed memory beside its tensors");
  CHECK(fault_of<write_behind_scratch>(x.view(), y.view()) == "cast wrote beyond its scratch");
}

}  // namespace ferry::test
