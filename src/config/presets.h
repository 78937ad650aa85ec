// SPDX-License-Identifier: Apache-2.0
// Built-in model shapes, and what the option `model` may name.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "config/model_config.h"

namespace ferry {

std::vector<std::string_view> preset_names();

/// `model` is a preset, a Hugging Face folder or a config.json; a preset goes before a folder of the same name.
/// Throws Error{kConfig} listing the presets and the nearest one, or what load_model_config throws.
ModelConfig resolve_model(const std::string& model);

}  // namespace ferry
