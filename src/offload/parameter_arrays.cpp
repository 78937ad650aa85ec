// SPDX-License-Identifier: Apache-2.0
// Storing f32 values as weights.
#include "offload/parameter_arrays.h"

#include <cstring>

#include "core/error.h"

namespace ferry {

TensorView ParameterArrays::at(ParameterArray array, std::int64_t offset, std::int64_t elems) const {
  switch (array) {
    case ParameterArray::kWeight: return weights_at(offset, elems);
    case ParameterArray::kWeightLow: return weights_low_at(offset, elems);
    case ParameterArray::kFirstMoment: return m_at(offset, elems);
    case ParameterArray::kSecondMoment: return v_at(offset, elems);
  }
  return {};
}

void store_weights(const ParameterArrays& arrays, std::span<const float> values, const TensorView& weight,
                   const TensorView& weight_low) {
  FERRY_ASSERT(weight.elems() == static_cast<std::int64_t>(values.size()));
  if (arrays.dtype == DType::kF32) {
    std::memcpy(weight.data, values.data(), values.size_bytes());
    return;
  }
  auto* high = weight.as<Bf16>();
  if (!weight_low) {
    for (std::size_t i = 0; i < values.size(); ++i) high[i] = to_bf16(values[i]);
    return;
  }
  auto* low = weight_low.as<std::int16_t>();
  for (std::size_t i = 0; i < values.size(); ++i) {
    const SplitF32 split = split_f32(values[i]);
    high[i] = split.high;
    low[i] = split.low;
  }
}

}  // namespace ferry
