// SPDX-License-Identifier: Apache-2.0
// Random initial weights that do not depend on threads, pieces or call order.
#pragma once

#include <cstdint>
#include <span>

#include "config/model_config.h"
#include "model/parameter_table.h"

namespace ferry {

/// values[i] = initial value of element first + i of `parameter`: 1 for norms, else normal(0, initializer_range) from a
/// counter RNG keyed by (seed, name, index).  Source: transformers' PreTrainedModel._init_weights.
void initial_values(const ModelConfig& config, const ParameterInfo& parameter, std::uint64_t seed, std::int64_t first,
                    std::span<float> values);

}  // namespace ferry
