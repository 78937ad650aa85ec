// SPDX-License-Identifier: Apache-2.0
// Aligned memory of the CPU backend.
#pragma once

#include <cstddef>

namespace ferry::cpu {

/// Memory aligned to Buffer::kAlignment, in huge pages where it is large and the system has them; rounded up to pages
/// at most. nullptr when there is not enough. `size_bytes` >= 1.
void* allocate_memory(std::size_t size_bytes);

/// `size_bytes` as it was allocated.
void free_memory(void* data, std::size_t size_bytes) noexcept;

}  // namespace ferry::cpu
