// SPDX-License-Identifier: Apache-2.0
// What a training step may copy, from the rules of docs/offload.md alone.
#pragma once

#include <cstdint>

#include "config/model_config.h"
#include "data/batch_loader.h"
#include "model/parameter_table.h"
#include "offload/engine.h"

namespace ferry::test {

/// Down, a range: which weights a second visit still finds in a slot depends on how far AdamW was.
struct StepBytes {
  std::int64_t least_h2d = 0;
  std::int64_t most_h2d = 0;
  std::int64_t d2h = 0;
};

/// `after_pass`: a pass without updates came since the step before, so that slots may hold weights already.
StepBytes expected_bytes(const ParameterTable& parameters, const ModelConfig& model, const EngineOptions& options,
                         const Batch& batch, bool after_pass);

}  // namespace ferry::test
