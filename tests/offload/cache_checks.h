// SPDX-License-Identifier: Apache-2.0
// Properties of the key/value cache that hold on every backend; as engine_checks.h.
#pragma once

#include <string>
#include <vector>

#include "offload/tiny_model.h"

namespace ferry::test {

/// A forward-only engine whose longest pass is shorter than its cache.
EngineOptions cached_options(DType dtype, Offload offload);

/// Logits after each of `counts` ids of a random sequence, on a model of small_config.
std::vector<std::vector<float>> extend_by(Engine& engine, const std::vector<std::int32_t>& counts);

void check_cached_logits_against_pytorch(const std::string& backend_name);
void check_any_split_gives_the_logits_of_the_whole(const std::string& backend_name);
void check_placement_changes_no_logit(const std::string& backend_name);

}  // namespace ferry::test
