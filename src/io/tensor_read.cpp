// SPDX-License-Identifier: Apache-2.0
// Element conversions from stored dtypes.
#include "io/tensor_read.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/error.h"
#include "io/printable.h"

namespace ferry {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian");

// IEEE binary16.
struct F16 {
  std::uint16_t bits = 0;
};

using ferry::to_f32;  // for float and Bf16, which the next overload would hide

float to_f32(F16 value) {
  const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000U) << 16;
  const std::uint32_t magnitude = value.bits & 0x7fffU;
  if (magnitude >= 0x7c00) return std::bit_cast<float>(sign | 0x7f800000U | (magnitude & 0x3ffU) << 13);
  // As an f32 the exponent is 112 too small; the product is exact, for subnormals too.
  const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112F;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(scaled) | sign);
}

float from_f32(float value, float*) { return value; }
Bf16 from_f32(float value, Bf16*) { return to_bf16(value); }

template <class Source, class Destination>
void convert(const std::byte* source, void* destination, std::int64_t n_elems) {
  auto* out = static_cast<Destination*>(destination);
  for (std::int64_t i = 0; i < n_elems; ++i) {
    Source value;
    std::memcpy(&value, source + i * static_cast<std::int64_t>(sizeof(Source)), sizeof(Source));
    out[i] = from_f32(to_f32(value), out);
  }
}

template <class Destination>
bool convert_from(std::string_view dtype, const std::byte* source, void* destination, std::int64_t n_elems) {
  if (dtype == "F32") {
    convert<float, Destination>(source, destination, n_elems);
  } else if (dtype == "BF16") {
    convert<Bf16, Destination>(source, destination, n_elems);
  } else if (dtype == "F16") {
    convert<F16, Destination>(source, destination, n_elems);
  } else {
    return false;
  }
  return true;
}

}  // namespace

void read_tensor(const std::string& origin, const SafetensorsEntry& entry, const TensorRead& read) {
  FERRY_CHECK(std::ranges::equal(entry.shape, read.shape), kShape, "{}: tensor '{}' has shape {}, expected {}", origin,
              printable_name(entry.name), describe_shape(entry.shape), describe_shape(read.shape));
  const std::int64_t n_stored = entry.elems();
  FERRY_CHECK(read.first_elem >= 0 && read.n_elems >= 0 && read.first_elem <= n_stored - read.n_elems, kShape,
              "{}: tensor '{}' has {} elements, asked for {} from {}", origin, printable_name(entry.name), n_stored,
              read.n_elems, read.first_elem);
  const std::byte* source = entry.bytes.data() + read.first_elem * (safetensors_dtype_bits(entry.dtype) / 8);
  if (entry.dtype == safetensors_dtype(read.dtype)) {
    if (read.n_elems > 0) {
      std::memcpy(read.destination, source, static_cast<std::size_t>(read.n_elems) * size_of(read.dtype));
    }
    return;
  }
  const bool done =
      (read.dtype == DType::kF32 && convert_from<float>(entry.dtype, source, read.destination, read.n_elems)) ||
      (read.dtype == DType::kBf16 && convert_from<Bf16>(entry.dtype, source, read.destination, read.n_elems));
  FERRY_CHECK(done, kDType, "{}: tensor '{}' is {}, which cannot be read as {}: store it as F32, BF16 or F16", origin,
              printable_name(entry.name), entry.dtype, to_string(read.dtype));
}

}  // namespace ferry
