// SPDX-License-Identifier: Apache-2.0
// Aligned text for people: a label of ten columns, then the facts.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ferry {

/// Lines of a text: a label first, prose broken at spaces to the width of a usual terminal.
class TextReport {
 public:
  void add(std::string_view label, std::string_view text);
  /// Never broken.
  void add_line(std::string_view label, std::string_view text);
  /// add_line for each, the label at the first.
  void add_lines(std::string_view label, const std::vector<std::string>& lines);

  std::vector<std::string> lines() && { return std::move(lines_); }

 private:
  std::vector<std::string> lines_;
};

/// 1234567 -> "1,234,567"
std::string grouped(std::int64_t value);

}  // namespace ferry
