// SPDX-License-Identifier: Apache-2.0
// "Did you mean": the known word nearest to a misspelt one.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace ferry {

/// Insertions, deletions, substitutions and swaps of neighbours that turn `a` into `b`.
int edit_distance(std::string_view a, std::string_view b);

/// The nearest of `known`, or "" when none is close. '-' and '_' count as equal.
std::string_view nearest(std::string_view word, std::span<const std::string_view> known);

/// ": did you mean 'x'?" or "" when nothing is close.
std::string did_you_mean(std::string_view word, std::span<const std::string_view> known);

}  // namespace ferry
