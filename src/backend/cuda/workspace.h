// SPDX-License-Identifier: Apache-2.0
// Workspace of the CUDA libraries: known to plans that are made without CUDA.
#pragma once

#include <cstddef>

namespace ferry::cuda {

/// Of every matrix product. The same under every memory budget, since the choice of an algorithm depends on it.
inline constexpr std::size_t kMatmulWorkspaceBytes = std::size_t{32} << 20;

/// An attention may use this much; one that needs more is split by sequence, then by key/value head. The deterministic
/// backward pass needs 2*B*H*T*T bytes and an f32 copy of d_q: 285 MB for one sequence of 2048 tokens, 32 heads, D =
/// 64, and 302 MB with D = 128, so one such sequence fits. On an H200, D = 64, a sequence then takes 0.23 ms; four at
/// once (1.14 GB) take 0.17 ms each, sixteen (4.57 GB) 0.16.
inline constexpr std::size_t kMaxAttentionWorkspaceBytes = std::size_t{300} << 20;

}  // namespace ferry::cuda
