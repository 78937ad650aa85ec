// SPDX-License-Identifier: Apache-2.0
// Values of options: checked, stored, read back, printed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "config/option_table.h"

namespace ferry {

/// A value as a file or a flag holds it, before it meets the table.
using OptionValue = std::variant<bool, std::int64_t, double, std::string, std::vector<std::string>>;

/// Checks and stores one value. Throws Error{kConfig} "<where> = <got>: expected <allowed>"; `where` names the file,
/// the line and the key, or the flag.
void set_option(RunConfig& config, const Option& option, const OptionValue& value, std::string_view where);

/// Reads flag text ("3e-4", "true", "a path") as the type of `option`; text that does not fit stays a string, which
/// set_option then refuses.
OptionValue parse_flag_text(const Option& option, const std::vector<std::string>& texts);

OptionValue get_option(const RunConfig& config, const Option& option);

/// "tokens:2048" -> {"tokens", 2048}; count is 0 without a number, or with one out of range.
struct CountedWord {
  std::string word;
  std::int64_t count = 0;
};
CountedWord parse_counted(std::string_view text);

/// "6.8GB" -> 6800000000, "4GiB" -> 4294967296: a number > 0 with one of the units B, kB, MB, GB, TB, KiB, MiB, GiB,
/// TiB.
std::optional<std::int64_t> parse_size(std::string_view text);

/// "an integer from 1 to 4096", "one of f32, bf16"
std::string allowed_values(const Option& option);

/// True when `value` is one that set_option takes.
bool is_allowed(const Option& option, const OptionValue& value);

/// TOML text of a value: 3, 0.0003, "text", ["a", "b"].
std::string to_toml(const OptionValue& value);

/// Checks what single ranges cannot. Throws Error{kConfig}.
void validate(const RunConfig& config, Command command);

}  // namespace ferry
