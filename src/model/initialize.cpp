// SPDX-License-Identifier: Apache-2.0
// Initial weights.
#include "model/initialize.h"

#include <algorithm>

#include "core/rng.h"

namespace ferry {

void initial_values(const ModelConfig& config, const ParameterInfo& parameter, std::uint64_t seed, std::int64_t first,
                    std::span<float> values) {
  if (parameter.is_norm) {
    std::ranges::fill(values, 1.0F);
    return;
  }
  const CounterRng rng(seed, parameter.name);
  const auto deviation = static_cast<float>(config.initializer_range);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = deviation * rng.normal(static_cast<std::uint64_t>(first) + i);
  }
}

}  // namespace ferry
