// SPDX-License-Identifier: Apache-2.0
// configs/tiny.toml, compiled into the program.
#pragma once

#include <string_view>

namespace ferry {

/// What `ferry train` runs when it is given no config file.
std::string_view embedded_default_config();

}  // namespace ferry
