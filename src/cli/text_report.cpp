// SPDX-License-Identifier: Apache-2.0
// Columns, line breaks and groups of digits.
#include "cli/text_report.h"

#include <fmt/core.h>

#include <algorithm>

namespace ferry {
namespace {

constexpr std::size_t kLabelColumns = 10;
constexpr std::size_t kTextColumns = 79;

}  // namespace

void TextReport::add(std::string_view label, std::string_view text) {
  constexpr std::size_t kWidth = kTextColumns - kLabelColumns;
  while (text.size() > kWidth) {
    const std::size_t space = std::min(text.rfind(' ', kWidth), text.find(' ', kWidth));
    if (space == std::string_view::npos || space == 0) break;
    add_line(label, text.substr(0, space));
    text.remove_prefix(space + 1);
    label = "";
  }
  add_line(label, text);
}

void TextReport::add_line(std::string_view label, std::string_view text) {
  lines_.push_back(fmt::format("{:<{}}{}", label, kLabelColumns, text));
}

void TextReport::add_lines(std::string_view label, const std::vector<std::string>& lines) {
  for (std::size_t i = 0; i < lines.size(); ++i) add_line(i == 0 ? label : "", lines[i]);
}

std::string grouped(std::int64_t value) {
  const std::string digits = std::to_string(value);
  std::string text;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text.push_back(',');
    text.push_back(digits[i]);
  }
  return text;
}

}  // namespace ferry
