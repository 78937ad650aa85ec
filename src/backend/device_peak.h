// SPDX-License-Identifier: Apache-2.0
// What GPUs can do at most, by name.
#pragma once

#include <optional>
#include <string_view>

namespace ferry {

/// Dense bf16 matrix products with f32 accumulation, in FLOP/s, of the GPU that `description` names ("NVIDIA H200,
/// ..."). None for a CPU, a part of a GPU (MIG), a laptop GPU, or a name that is not in the table. Source    NVIDIA's
/// data sheets; rates "with sparsity" are halved.
std::optional<double> dense_bf16_peak(std::string_view description);

}  // namespace ferry
