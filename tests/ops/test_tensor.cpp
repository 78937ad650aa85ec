// SPDX-License-Identifier: Apache-2.0
// Storage, conversion and comparison of test tensors.
#include "ops/test_tensor.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/rng.h"
#include "ops/tolerances.h"

namespace ferry::test {
namespace {

constexpr std::size_t kBase = 256;
constexpr std::int64_t kGap = 3;
constexpr auto kFiller = std::byte{0xff};  // NaN in f32 and bf16, -1 in i32

double load(const std::byte* from, DType dtype) {
  float f = 0;
  Bf16 half;
  std::int32_t i = 0;
  switch (dtype) {
    case DType::kF32: std::memcpy(&f, from, 4); return f;
    case DType::kBf16: std::memcpy(&half, from, 2); return to_f32(half);
    default: std::memcpy(&i, from, 4); return i;
  }
}

void store(std::byte* to, DType dtype, double value) {
  const auto f = static_cast<float>(value);
  const Bf16 half = to_bf16(f);
  const auto i = dtype == DType::kI32 ? static_cast<std::int32_t>(value) : 0;
  switch (dtype) {
    case DType::kF32: std::memcpy(to, &f, 4); return;
    case DType::kBf16: std::memcpy(to, &half, 2); return;
    default: std::memcpy(to, &i, 4); return;
  }
}

}  // namespace

const char* to_string(Placement placement) {
  switch (placement) {
    case Placement::kAligned: return "aligned";
    case Placement::kOffset: return "offset";
    case Placement::kStrided: return "strided";
  }
  return "unknown";
}

TestTensor::TestTensor(DType dtype, std::vector<std::int64_t> shape, Placement placement) {
  view_.dtype = dtype;
  view_.rank = static_cast<int>(shape.size());
  std::int64_t stride = 1;
  for (int i = view_.rank - 1; i >= 0; --i) {
    view_.shape[i] = shape[i];
    view_.stride[i] = stride;
    stride = stride * shape[i] + (placement == Placement::kStrided ? kGap : 0);
  }
  storage_ = std::make_shared<std::vector<std::byte>>((stride + kGap) * size_of(dtype) + 2 * kBase, kFiller);
  const auto address = reinterpret_cast<std::uintptr_t>(storage_->data());
  std::byte* base = storage_->data() + (kBase - address % kBase) % kBase;
  if (placement != Placement::kAligned) base += size_of(dtype);
  view_.data = base;
}

std::int64_t TestTensor::offset(std::int64_t index) const {
  std::int64_t result = 0;
  for (int i = view_.rank - 1; i >= 0; --i) {
    result += index % view_.shape[i] * view_.stride[i];
    index /= view_.shape[i];
  }
  return result * static_cast<std::int64_t>(size_of(view_.dtype));
}

std::vector<double> TestTensor::values() const {
  std::vector<double> result(view_.elems());
  const auto* base = static_cast<const std::byte*>(view_.data);
  for (std::size_t i = 0; i < result.size(); ++i)
    result[i] = load(base + offset(static_cast<std::int64_t>(i)), view_.dtype);
  return result;
}

void TestTensor::set(std::span<const double> values) {
  auto* base = static_cast<std::byte*>(view_.data);
  for (std::size_t i = 0; i < values.size(); ++i) {
    store(base + offset(static_cast<std::int64_t>(i)), view_.dtype, values[i]);
  }
}

std::vector<std::uint32_t> TestTensor::bits() const {
  std::vector<std::uint32_t> result(view_.elems());
  const auto* base = static_cast<const std::byte*>(view_.data);
  for (std::size_t i = 0; i < result.size(); ++i) {
    std::memcpy(&result[i], base + offset(static_cast<std::int64_t>(i)), size_of(view_.dtype));
  }
  return result;
}

bool TestTensor::surroundings_untouched() const {
  std::vector<std::byte> outside = *storage_;
  const auto base = static_cast<const std::byte*>(view_.data) - storage_->data();
  for (std::int64_t i = 0; i < view_.elems(); ++i) {
    std::fill_n(outside.begin() + base + offset(i), size_of(view_.dtype), kFiller);
  }
  return std::all_of(outside.begin(), outside.end(), [](std::byte b) { return b == kFiller; });
}

TestTensor random_tensor(DType dtype, std::vector<std::int64_t> shape, const std::string& name, double scale,
                         Placement placement) {
  TestTensor tensor(dtype, std::move(shape), placement);
  const CounterRng rng(7, name);
  std::vector<double> values(tensor.view().elems());
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = scale * rng.normal(i);
  tensor.set(values);
  return tensor;
}

std::string difference(const std::string& backend, const char* op, const TestTensor& got,
                       std::span<const double> want) {
  const Tolerance allowed = tolerance(backend, op, got.view().dtype);
  const std::vector<double> values = got.values();
  if (values.size() != want.size()) return "sizes differ";
  double largest = 0;
  for (const double value : want) largest = std::isfinite(value) ? std::max(largest, std::abs(value)) : largest;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double error = std::abs(values[i] - want[i]);
    const bool equal = values[i] == want[i] || (std::isnan(values[i]) && std::isnan(want[i]));
    if (!equal && !(error <= allowed.relative * std::abs(want[i]) + allowed.of_largest * largest)) {
      return "index " + std::to_string(i) + ": got " + std::to_string(values[i]) + ", want " + std::to_string(want[i]) +
             ", largest " + std::to_string(largest);
    }
  }
  return "";
}

}  // namespace ferry::test
