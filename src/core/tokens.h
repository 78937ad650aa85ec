// SPDX-License-Identifier: Apache-2.0
// What token ids mean beside a place in the vocabulary.
#pragma once

#include <cstdint>

namespace ferry {

/// Target value of positions that do not count.
inline constexpr std::int32_t kIgnoreIndex = -100;

}  // namespace ferry
