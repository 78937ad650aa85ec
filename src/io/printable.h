// SPDX-License-Identifier: Apache-2.0
// Untrusted bytes made safe to show on a terminal or in a message.
#pragma once

#include <string>
#include <string_view>

namespace ferry {

/// Valid UTF-8, newlines and tabs stay; a backslash is doubled; every other byte (control characters, invalid UTF-8)
/// becomes \xNN. Lossless: the input can be recovered.
std::string printable_text(std::string_view bytes);

/// A name for a message: as printable_text, on one line, and cut to about 120 bytes.
std::string printable_name(std::string_view bytes);

}  // namespace ferry
