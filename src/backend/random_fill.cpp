// SPDX-License-Identifier: Apache-2.0
// The pattern is made once on the host and copied to the device piece by piece.
#include "backend/random_fill.h"

#include <algorithm>

#include "core/error.h"
#include "core/rng.h"

namespace ferry {

RandomFill::RandomFill(Backend& backend, DType dtype, float scale)
    : backend_(backend),
      dtype_(dtype),
      pattern_(backend.allocate_host(static_cast<std::size_t>(kElems) * size_of(dtype), "random values")) {
  FERRY_ASSERT(dtype == DType::kF32 || dtype == DType::kBf16 || dtype == DType::kI32);
  const CounterRng rng(2024, "bench");
  for (std::int64_t i = 0; i < kElems; ++i) {
    const auto index = static_cast<std::uint64_t>(i);
    if (dtype == DType::kF32) static_cast<float*>(pattern_.data())[i] = scale * rng.normal(index);
    if (dtype == DType::kBf16) static_cast<Bf16*>(pattern_.data())[i] = to_bf16(scale * rng.normal(index));
    if (dtype == DType::kI32) {
      static_cast<std::int32_t*>(pattern_.data())[i] = static_cast<std::int32_t>(scale * rng.uniform(index));
    }
  }
}

void RandomFill::fill(StreamRef stream, void* data, std::int64_t elems) const {
  const auto elem_bytes = static_cast<std::int64_t>(size_of(dtype_));
  for (std::int64_t first = 0; first < elems; first += kElems) {
    const std::int64_t count = std::min(kElems, elems - first);
    backend_.copy(stream, static_cast<std::byte*>(data) + first * elem_bytes, pattern_.data(),
                  static_cast<std::size_t>(count * elem_bytes), CopyDirection::kHostToDevice);
  }
  backend_.sync(stream);
}

}  // namespace ferry
