// SPDX-License-Identifier: Apache-2.0
// The one source that sees toml++: it tells values and lines apart, the option table does the rest.
#include "config/config_file.h"

#include <fmt/ranges.h>
#include <toml++/toml.h>

#include <algorithm>
#include <optional>
#include <sstream>

#include "config/nearest.h"
#include "config/option_value.h"
#include "config/text_file.h"
#include "core/error.h"

namespace ferry {
namespace {

// "tiny.toml:12"
std::string place(std::string_view name, const toml::source_region& source) {
  return fmt::format("{}:{}", name, source.begin.line);
}

// nullopt for what no option takes: tables, dates, lists of anything but text.
std::optional<OptionValue> value_of(const toml::node& node) {
  if (const auto* value = node.as_boolean()) return value->get();
  if (const auto* value = node.as_integer()) return value->get();
  if (const auto* value = node.as_floating_point()) return value->get();
  if (const auto* value = node.as_string()) return value->get();
  const toml::array* list = node.as_array();
  if (list == nullptr) return std::nullopt;
  std::vector<std::string> texts;
  for (const toml::node& item : *list) {
    const auto* text = item.as_string();
    if (text == nullptr) return std::nullopt;
    texts.push_back(text->get());
  }
  return texts;
}

std::string text_of(const toml::node& node) {
  if (const std::optional<OptionValue> value = value_of(node)) return shown(to_toml(*value));
  std::ostringstream stream;
  node.visit([&](const auto& value) { stream << value; });
  return shown(stream.str());
}

[[noreturn]] void refuse_key(std::string_view key, const toml::node& node, const std::string& at) {
  std::vector<std::string_view> keys;
  for (const Option& option : option_table()) keys.emplace_back(option.key);
  detail::throw_error(ErrorKind::kConfig,
                      fmt::format("{}: unknown key '{}' = {}{} (`ferry train --help-all` lists all)", at, shown(key),
                                  text_of(node), did_you_mean(key, keys)));
}

void read_key(std::string_view section, std::string_view key, const toml::node& node, std::string_view name,
              RunConfig& config) {
  const std::string at = place(name, node.source());
  const Option* option = find_option(key);
  if (option == nullptr) refuse_key(key, node, at);
  FERRY_CHECK(section == option->section, kConfig, "{}: {} = {} belongs under [{}], not {}", at, key, text_of(node),
              option->section, section.empty() ? "before the first section" : fmt::format("under [{}]", section));
  const std::string where = fmt::format("{}: {}", at, key);
  const std::optional<OptionValue> value = value_of(node);
  FERRY_CHECK(value.has_value(), kConfig, "{} = {}: expected {}", where, text_of(node), allowed_values(*option));
  set_option(config, *option, *value, where);
}

void read_section(std::string_view section, const toml::table& table, std::string_view name, RunConfig& config) {
  const std::vector<std::string_view> sections = option_sections();
  FERRY_CHECK(std::ranges::count(sections, section) != 0, kConfig, "{}: unknown section [{}]{} (sections: {})",
              place(name, table.source()), shown(section), did_you_mean(section, sections), fmt::join(sections, ", "));
  for (const auto& [key, node] : table) read_key(section, key.str(), node, name, config);
}

}  // namespace

void read_config_text(std::string_view text, std::string_view name, RunConfig& config) {
  toml::table root;
  try {
    root = toml::parse(text, name);
  } catch (const toml::parse_error& error) {
    detail::throw_error(ErrorKind::kConfig, fmt::format("{}: {}", place(name, error.source()), error.description()));
  }
  for (const auto& [key, node] : root) {
    if (const toml::table* section = node.as_table()) {
      read_section(key.str(), *section, name, config);
    } else {
      read_key("", key.str(), node, name, config);
    }
  }
}

void read_config_file(const std::filesystem::path& path, RunConfig& config) {
  read_config_text(read_text_file(path), path.string(), config);
}

std::string to_toml(const RunConfig& config) {
  std::string text;
  std::string_view section;
  for (const Option& option : option_table()) {
    const OptionValue value = get_option(config, option);
    if (!is_allowed(option, value)) continue;  // not given
    if (section != option.section) {
      section = option.section;
      text += fmt::format("{}[{}]\n", text.empty() ? "" : "\n", section);
    }
    text += fmt::format("{} = {}\n", option.key, to_toml(value));
  }
  return text;
}

}  // namespace ferry
