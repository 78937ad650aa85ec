// SPDX-License-Identifier: Apache-2.0
// Two backends that agree, and a reference with a planted fault.
#include "backend/check_backend.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "catch.h"
#include "thrown.h"

using namespace ferry;
using cpu::Launch;

namespace {

/// Called by the faulty table after the real op, with the op's tensors.
std::function<void(const Op&)> planted_fault;

void run_with_fault(const Op& op, Scratch scratch, ThreadPool& pool) {
  cpu::op_table(simd_level()).run(op, scratch, pool);
  if (planted_fault) planted_fault(op);
}

constexpr cpu::OpTable kFaulty{SimdLevel::kScalar, run_with_fault,
                               [](const Op& op) { return cpu::op_table(simd_level()).scratch_bytes(op); }};

std::unique_ptr<Backend> right_backend() {
  return cpu::create_cpu_backend(cpu::op_table(simd_level()), Launch::kWorker, {.threads = 1});
}

/// A right subject and a reference that runs `fault` after each op.
std::unique_ptr<Backend> check_with(std::function<void(const Op&)> fault) {
  planted_fault = std::move(fault);
  return create_check_backend({"right", right_backend()},
                              {"faulty", cpu::create_cpu_backend(kFaulty, Launch::kWorker, {.threads = 1})});
}

/// Device memory with waves of values, and ops on it.
class Bench {
 public:
  explicit Bench(Backend& backend) : backend_(backend), stream_(backend.create_stream("compute")) {}

  TensorView tensor(DType dtype, std::initializer_list<std::int64_t> shape) {
    TensorView view(nullptr, dtype, shape);
    buffers_.push_back(backend_.allocate_device(view.size_bytes(), "a test"));
    view.data = buffers_.back().data();
    for (std::int64_t i = 0; i < view.elems(); ++i) {
      const auto value = static_cast<float>(std::sin(static_cast<double>(i * i + 3 * view.rank)));
      if (dtype == DType::kF32) view.as<float>()[i] = value;
      if (dtype == DType::kBf16) view.as<Bf16>()[i] = to_bf16(value);
      if (dtype == DType::kI32) view.as<std::int32_t>()[i] = static_cast<std::int32_t>(i);
      if (dtype == DType::kI16) view.as<std::int16_t>()[i] = static_cast<std::int16_t>(37 * i);
    }
    return view;
  }

  void run(const Op& op) {
    const std::size_t scratch_bytes = backend_.scratch_bytes(op);
    const Buffer scratch = backend_.allocate_device(scratch_bytes, "scratch");
    backend_.enqueue(stream_.get(), op, {scratch.data(), scratch_bytes});
    backend_.sync(stream_.get());
  }

  std::vector<std::byte> bytes() const {
    std::vector<std::byte> result;
    for (const Buffer& buffer : buffers_) {
      const auto* data = static_cast<const std::byte*>(buffer.data());
      result.insert(result.end(), data, data + buffer.size_bytes());
    }
    return result;
  }

 private:
  Backend& backend_;
  std::unique_ptr<Stream> stream_;
  std::vector<Buffer> buffers_;
};

/// `n` heads of width 4 from column `begin` of a fused (2, 3, columns) projection.
TensorView heads(const TensorView& fused, std::int64_t begin, std::int64_t n) {
  TensorView view = fused.columns(begin, 4 * n);
  view.rank = 4;
  view.shape = {2, 3, n, 4};
  view.stride = {fused.stride[0], fused.stride[1], 4, 1};
  return view;
}

/// q, k and v of one buffer: rotated in place, attended to, and back.
void run_attention(Bench& bench, DType dtype) {
  const TensorView qkv = bench.tensor(dtype, {2, 3, 16}), d_qkv = bench.tensor(dtype, {2, 3, 16});
  const TensorView cos = bench.tensor(DType::kF32, {3, 2}), sin = bench.tensor(DType::kF32, {3, 2});
  const TensorView o = bench.tensor(dtype, {2, 3, 2, 4}), d_o = bench.tensor(dtype, {2, 3, 2, 4});
  const TensorView lse = bench.tensor(DType::kF32, {2, 2, 3});
  bench.run(Rope{.x = heads(qkv, 0, 3), .cos = cos, .sin = sin});
  const TensorView q = heads(qkv, 0, 2), k = heads(qkv, 8, 1), v = heads(qkv, 12, 1);
  bench.run(AttentionForward{.q = q, .k = k, .v = v, .o = o, .lse = lse, .scale = 0.5F});
  bench.run(AttentionBackward{.q = q,
                              .k = k,
                              .v = v,
                              .o = o,
                              .lse = lse,
                              .d_o = d_o,
                              .d_q = heads(d_qkv, 0, 2),
                              .d_k = heads(d_qkv, 8, 1),
                              .d_v = heads(d_qkv, 12, 1),
                              .scale = 0.5F});
}

/// Ops in place, on columns of one buffer, that accumulate, and with scratch.
void run_layer_parts(Bench& bench, DType dtype) {
  const TensorView x = bench.tensor(dtype, {6, 8}), weight = bench.tensor(dtype, {8}), w = bench.tensor(dtype, {8, 10});
  const TensorView sum = bench.tensor(dtype, {6, 8}), rstd = bench.tensor(DType::kF32, {6});
  const TensorView gate_up = bench.tensor(dtype, {6, 10}), gate = gate_up.columns(0, 5), up = gate_up.columns(5, 5);
  const TensorView d_x = bench.tensor(dtype, {6, 8}), d_weight = bench.tensor(dtype, {8});
  const TensorView norm = bench.tensor(DType::kF32, {1});
  bench.run(RmsNormForward{.x = x, .addend = sum, .sum = sum, .weight = weight, .y = x, .rstd = rstd});
  bench.run(Matmul{.a = x, .b = w, .c = gate_up, .d = gate_up});
  bench.run(SwigluForward{.gate = gate, .up = up, .y = gate});
  const TensorView d_y = bench.tensor(dtype, {6, 5});
  bench.run(SwigluBackward{.d_y = d_y, .gate = gate, .up = up, .d_gate = gate, .d_up = up, .y = d_y});
  bench.run(RmsNormBackward{
      .d_y = x, .x = sum, .weight = weight, .rstd = rstd, .d_residual = d_x, .d_x = d_x, .d_weight = d_weight});
  bench.run(SumOfSquares{.x = d_weight, .skip = {}, .y = norm});
}

void run_update(Bench& bench) {
  const TensorView weight = bench.tensor(DType::kBf16, {9}), gradient = bench.tensor(DType::kBf16, {9});
  const TensorView m = bench.tensor(DType::kF32, {9}), v = bench.tensor(DType::kF32, {9});
  const TensorView low = bench.tensor(DType::kI16, {9});
  bench.run(Fill{m});
  bench.run(Fill{v});
  const AdamwScalars scalars = adamw_scalars({}, 1e-2, 1, true);
  bench.run(Adamw{.weight = weight, .weight_low = low, .m = m, .v = v, .gradient = gradient, .scalars = scalars});
  bench.run(Cast{.x = weight, .y = m});
}

std::vector<std::byte> run_all(Backend& backend) {
  Bench bench(backend);
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    run_attention(bench, dtype);
    run_layer_parts(bench, dtype);
  }
  run_update(bench);
  return bench.bytes();
}

/// The op and the tensors of a SwiGLU on the two halves of a buffer, in place.
SwigluForward swiglu_in_place(Bench& bench, DType dtype) {
  const TensorView gate_up = bench.tensor(dtype, {3, 8});
  return {.gate = gate_up.columns(0, 4), .up = gate_up.columns(4, 4), .y = gate_up.columns(0, 4)};
}

}  // namespace

TEST_CASE("a right pair agrees in place, on fused buffers, with scratch, and gives the bits of its first") {
  const auto plain = right_backend();
  const auto check = create_check_backend({"cpu", right_backend()}, {"cpu", right_backend()});
  CHECK(run_all(*check) == run_all(*plain));
}

TEST_CASE("the first wrong op is named with tensor, index, values and tolerance") {
  const auto check = check_with([](const Op& op) {
    const auto* swiglu = std::get_if<SwigluForward>(&op);
    if (swiglu == nullptr) return;
    swiglu->y.as<float>()[2 * 8 + 1] = 2;
    swiglu->y.as<float>()[2 * 8 + 3] = -2;
  });
  Bench bench(*check);
  bench.run(Fill{bench.tensor(DType::kF32, {2})});
  SwigluForward op = swiglu_in_place(bench, DType::kF32);
  op.gate.as<float>()[2 * 8 + 1] = 0;
  CHECK(thrown([&] { bench.run(op); }) ==
        "device: check:right,faulty: op 1, swiglu_forward: y f32 (3, 4) at (2, 1): got 0 (right), want 2 "
        "(faulty), allowed difference 8.58e-06 (3.81e-06 of want + 4.77e-07 of the tensor's largest, 2); 2 of 12 "
        "elements differ: run on one of the two backends, and report this message");
}

TEST_CASE("every tensor that an op writes is compared") {
  const auto check = check_with([](const Op& op) { std::get<RmsNormForward>(op).rstd.as<float>()[5] += 1; });
  Bench bench(*check);
  const TensorView x = bench.tensor(DType::kBf16, {6, 8}), weight = bench.tensor(DType::kBf16, {8});
  const RmsNormForward op{
      .x = x, .addend = {}, .sum = {}, .weight = weight, .y = x, .rstd = bench.tensor(DType::kF32, {6})};
  CHECK(thrown([&] { bench.run(op); }).find("op 0, rmsnorm_forward: rstd f32 (6) at (5): got ") != std::string::npos);
}

TEST_CASE("a tensor that an op changes in place is compared") {
  const auto check = check_with([](const Op& op) { std::get<Rope>(op).x.as<float>()[7] += 1; });
  Bench bench(*check);
  const Rope op{.x = bench.tensor(DType::kF32, {1, 3, 1, 4}),
                .cos = bench.tensor(DType::kF32, {3, 2}),
                .sin = bench.tensor(DType::kF32, {3, 2})};
  CHECK(thrown([&] { bench.run(op); }).find("rope: x f32 (1, 3, 1, 4) at (0, 1, 0, 3): got ") != std::string::npos);
}

TEST_CASE("the reference sees tensors as aligned as the subject's") {
  std::uintptr_t seen = 0;
  const auto check =
      check_with([&](const Op& op) { seen = reinterpret_cast<std::uintptr_t>(std::get<Fill>(op).x.data); });
  Bench bench(*check);
  const TensorView x = bench.tensor(DType::kF32, {100}).rows(67, 5);
  bench.run(Fill{x});
  CHECK(seen != reinterpret_cast<std::uintptr_t>(x.data));
  CHECK(seen % Buffer::kAlignment == reinterpret_cast<std::uintptr_t>(x.data) % Buffer::kAlignment);
}

TEST_CASE("an op with a defined order must give the same bits") {
  const auto check = check_with([](const Op& op) { ++std::get<Cast>(op).y.as<Bf16>()[3].bits; });
  Bench bench(*check);
  const Cast op{.x = bench.tensor(DType::kF32, {4}), .y = bench.tensor(DType::kBf16, {4})};
  CHECK(thrown([&] { bench.run(op); }).find(", expected the same bits; 1 of 4 elements differ") != std::string::npos);
}

TEST_CASE("what lies between the rows of a tensor is not compared") {
  const auto check = check_with([](const Op& op) { std::get<SwigluForward>(op).y.as<float>()[5] = 1e9F; });
  Bench bench(*check);
  const SwigluForward op = swiglu_in_place(bench, DType::kF32);
  CHECK(thrown([&] { bench.run(op); }).empty());
}

TEST_CASE("an op that is refused does not count, and nothing runs") {
  bool ran = false;
  const auto check = check_with([&](const Op&) { ran = true; });
  Bench bench(*check);
  CHECK(thrown([&] { bench.run(Fill{}); }) == "shape: fill: x is missing, expected a tensor");
  CHECK(!ran);
  CHECK(thrown([&] { bench.run(Fill{bench.tensor(DType::kF32, {2})}); }).empty());
}

TEST_CASE("after a disagreement every call repeats it") {
  const auto check = check_with([](const Op& op) { std::get<Fill>(op).x.as<float>()[0] = 1; });
  auto stream = check->create_stream("compute");
  auto event = check->create_event();
  check->record(event.get(), stream.get());
  Bench bench(*check);
  const Fill op{bench.tensor(DType::kF32, {2})};
  const std::string message = thrown([&] { bench.run(op); });
  CHECK(message.find("op 0, fill: x f32 (2) at (0): got 0 (right), want 1 (faulty)") != std::string::npos);
  int from = 0, to = 0;
  CHECK(thrown([&] { bench.run(op); }) == message);
  CHECK(thrown([&] { check->copy(stream.get(), &to, &from, 4, CopyDirection::kHostToDevice); }) == message);
  CHECK(thrown([&] { check->record(event.get(), stream.get()); }) == message);
  CHECK(thrown([&] { check->wait(stream.get(), event.get()); }) == message);
  CHECK(thrown([&] { check->query(event.get()); }) == message);
  CHECK(thrown([&] { check->sync(event.get()); }) == message);
  CHECK(thrown([&] { check->sync(stream.get()); }) == message);
}

TEST_CASE("an op waits for the work of its stream before its inputs are read") {
  const auto check = check_with([](const Op&) {});
  auto stream = check->create_stream("compute");
  for (int round = 0; round < 20; ++round) {
    const std::size_t size_bytes = std::size_t{4} << 20;
    const Buffer host = check->allocate_host(size_bytes, "host"), device = check->allocate_device(size_bytes, "device");
    const Buffer sum = check->allocate_device(4, "sum");
    const auto n = static_cast<std::int64_t>(size_bytes / 4);
    for (std::int64_t i = 0; i < n; ++i) static_cast<float*>(host.data())[i] = 1;
    check->copy(stream.get(), device.data(), host.data(), size_bytes, CopyDirection::kHostToDevice);
    const SumOfSquares op{.x = {device.data(), DType::kF32, {n}}, .skip = {}, .y = {sum.data(), DType::kF32, {1}}};
    const Buffer scratch = check->allocate_device(check->scratch_bytes(op), "scratch");
    check->enqueue(stream.get(), op, {scratch.data(), scratch.size_bytes()});
    check->sync(stream.get());
    CHECK(*static_cast<const float*>(sum.data()) == static_cast<float>(n));
  }
}

TEST_CASE("a check counts and frees its memory, and says when there is too little") {
  auto subject = right_backend();
  const Backend& memory = *subject;
  const auto check = create_check_backend({"cpu", std::move(subject)}, {"cpu", right_backend()});
  {
    const Buffer device = check->allocate_device(1000, "weights"), host = check->allocate_host(10, "slab");
    CHECK(check->device_bytes() == 1000);
    CHECK(check->host_bytes() == 10);
    CHECK(memory.device_bytes() == 1000);
  }
  CHECK(check->device_bytes() == 0);
  CHECK(check->host_bytes() == 0);
  CHECK(memory.device_bytes() == 0);
  CHECK(memory.host_bytes() == 0);
  const std::string message = thrown([&] { check->allocate_device(std::size_t{1} << 60, "weights"); });
  CHECK(message.find("memory: device memory for weights: 1.0 EiB are not available") == 0);
}

TEST_CASE("a check says what it is") {
  const auto check = create_check_backend({"cpu:sync", right_backend()}, {"cpu", right_backend()});
  const Capabilities& capabilities = check->capabilities();
  CHECK(capabilities.name == "check");
  CHECK(!capabilities.is_device);
  CHECK(capabilities.description.find("cpu:sync (") == 0);
  CHECK(capabilities.description.find(", checked op by op by cpu (") != std::string::npos);
}
