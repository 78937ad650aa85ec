// SPDX-License-Identifier: Apache-2.0
// Tensors of safetensors files as lines of text; equal layers are shown once.
#pragma once

#include <string>
#include <vector>

#include "io/safetensors.h"

namespace ferry {

/// "47 tensors, 260,032 elements: 1016 KiB in F32"
std::string tensor_summary(const std::vector<SafetensorsEntry>& entries);

/// One line per tensor: name, dtype, shape, bytes. Unless `all`, neighbouring layers whose tensors agree in name, dtype
/// and shape share theirs, below a line such as "model.layers.0-15, each".
std::vector<std::string> tensor_table(const std::vector<SafetensorsEntry>& entries, bool all);

}  // namespace ferry
