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
/// Of a step and its parts: "0.123 ms", "9870 ms", from 10 s on "12.3 s".
std::string human_step_time(double seconds);
/// "42s", "1m02s", "3h05m". Negative or non-finite values give "-".
std::string human_duration(double seconds);

}  // namespace ferry
