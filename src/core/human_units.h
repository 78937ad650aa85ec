// SPDX-License-Identifier: Apache-2.0
// Numbers as people read them: 12.3k, 4.5 MiB, 1m02s.
#pragma once

#include <cstddef>
#include <string>

namespace ferry {

/// Three digits and a decimal suffix: "873", "12.3k", "1.05M". Negative or non-finite values give "-".
std::string human_count(double value);
/// Binary units: "512 B", "4.5 MiB".
std::string human_bytes(std::size_t size_bytes);
/// "42s", "1m02s", "3h05m". Negative or non-finite values give "-".
std::string human_duration(double seconds);

}  // namespace ferry
