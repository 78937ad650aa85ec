// SPDX-License-Identifier: Apache-2.0
// Division and multiples of counts, rounded up.
#pragma once

#include <cstdint>

namespace ferry {

/// a / b rounded up. a >= 0, b >= 1, a + b fits.
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// The least multiple of `unit` that is n or more. As ceil_div.
constexpr std::int64_t round_up(std::int64_t n, std::int64_t unit) { return ceil_div(n, unit) * unit; }

}  // namespace ferry
