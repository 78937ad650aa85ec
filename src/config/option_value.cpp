// SPDX-License-Identifier: Apache-2.0
// One visitor per question asked of an option's kind.
#include "config/option_value.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <limits>
#include <optional>

#include "config/nearest.h"
#include "config/text_file.h"
#include "core/error.h"

namespace ferry {
namespace {

std::string format_real(double value) {
  std::string text = fmt::format("{}", value);
  const std::size_t exponent = text.find("e-0");
  if (exponent != std::string::npos) text.erase(exponent + 2, 1);
  return text;
}

std::string toml_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto code = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += {'\\', c};
    } else if (c == '\n') {
      out += "\\n";
    } else if (code < 0x20 || code == 0x7f) {
      out += fmt::format("\\u{:04x}", code);
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::optional<int> index_of(const std::vector<const char*>& choices, std::string_view text) {
  const auto found = std::ranges::find(choices, text);
  if (found == choices.end()) return std::nullopt;
  return static_cast<int>(found - choices.begin());
}

bool is_choice(const TextOption& option, std::string_view text) {
  if (index_of(option.choices, text)) return true;
  const CountedWord counted = parse_counted(text);
  if (counted.count > 0 && index_of(option.counted, counted.word)) return true;
  const std::string prefix = option.pair_prefix == nullptr ? "" : fmt::format("{}:", option.pair_prefix);
  if (prefix.empty() || !text.starts_with(prefix)) return false;
  const std::string_view pair = text.substr(prefix.size());
  const std::size_t comma = pair.find(',');
  return comma != std::string_view::npos && index_of(option.choices, pair.substr(0, comma)) &&
         index_of(option.choices, pair.substr(comma + 1));
}

// A path that starts with a dash is nearly always a flag whose value was forgotten.
bool is_path(std::string_view text) { return !text.empty() && text[0] != '-' && is_text(text); }

// Stores into one field; false when the value is not allowed.
struct Store {
  RunConfig& config;
  const OptionValue& value;

  bool operator()(const IntOption& option) const {
    const auto* got = std::get_if<std::int64_t>(&value);
    if (got == nullptr || *got < option.min || *got > option.max) return false;
    config.*option.field = *got;
    return true;
  }
  bool operator()(const RealOption& option) const {
    double got = 0;
    if (const auto* whole = std::get_if<std::int64_t>(&value)) {
      got = static_cast<double>(*whole);
    } else if (const auto* real = std::get_if<double>(&value)) {
      got = *real;
    } else {
      return false;
    }
    const bool above = option.min_excluded ? got > option.min : got >= option.min;  // false for NaN
    const bool below = option.max_excluded ? got < option.max : got <= option.max;
    if (!above || !below) return false;
    config.*option.field = got;
    return true;
  }
  bool operator()(const BoolOption& option) const {
    const auto* got = std::get_if<bool>(&value);
    if (got == nullptr) return false;
    config.*option.field = *got;
    return true;
  }
  bool operator()(const TextOption& option) const {
    const auto* got = std::get_if<std::string>(&value);
    if (got == nullptr || got->empty() || !is_text(*got)) return false;
    if (option.form == TextOption::Form::kPath && !is_path(*got)) return false;
    if (option.form == TextOption::Form::kChoice && !is_choice(option, *got)) return false;
    if (option.form == TextOption::Form::kSize && !index_of(option.choices, *got) && !parse_size(*got)) return false;
    config.*option.field = *got;
    return true;
  }
  bool operator()(const ListOption& option) const {
    std::vector<std::string> paths;
    if (const auto* one = std::get_if<std::string>(&value)) {
      paths = {*one};
    } else if (const auto* list = std::get_if<std::vector<std::string>>(&value)) {
      paths = *list;
    }
    if (paths.empty() || !std::ranges::all_of(paths, is_path)) return false;
    config.*option.field = std::move(paths);
    return true;
  }
  bool operator()(const EnumOption& option) const {
    const auto* got = std::get_if<std::string>(&value);
    const std::optional<int> index = got == nullptr ? std::nullopt : index_of(option.choices, *got);
    if (!index) return false;
    option.set(config, *index);
    return true;
  }
};

// What a kind of option takes, in words.
struct Describe {
  static std::string one_of(const std::vector<const char*>& choices) {
    return fmt::format("one of {}", fmt::join(choices, ", "));
  }
  std::string operator()(const IntOption& option) const {
    if (option.max == std::numeric_limits<std::int64_t>::max()) return fmt::format("an integer >= {}", option.min);
    return fmt::format("an integer from {} to {}", option.min, option.max);
  }
  std::string operator()(const RealOption& option) const {
    return fmt::format("a number {} {} and {} {}", option.min_excluded ? ">" : ">=", option.min,
                       option.max_excluded ? "<" : "<=", option.max);
  }
  std::string operator()(const BoolOption&) const { return "true or false"; }
  std::string operator()(const TextOption& option) const {
    if (option.form == TextOption::Form::kChoice) {
      std::string choices = option.choices.size() == 1 ? option.choices.front() : one_of(option.choices);
      for (const char* word : option.counted) choices += fmt::format(", or {}:n", word);
      if (!option.counted.empty()) choices += fmt::format(" with n from 1 to {}", TextOption::kMaxCount);
      if (option.pair_prefix == nullptr) return choices;
      return fmt::format("{}, or {}:A,B with two of these", choices, option.pair_prefix);
    }
    if (option.form == TextOption::Form::kSize) {
      return fmt::format("{}, or a size such as 6.8GB or 4GiB", fmt::join(option.choices, ", "));
    }
    if (option.form == TextOption::Form::kName) return "text (UTF-8, not empty)";
    const std::string words = option.choices.empty() ? "" : fmt::format("{}, or ", fmt::join(option.choices, ", "));
    return words + "a path (UTF-8, not starting with -)";
  }
  std::string operator()(const ListOption& option) const {
    return fmt::format("one or more {}s (UTF-8, not starting with -)", option.item);
  }
  std::string operator()(const EnumOption& option) const { return one_of(option.choices); }
};

struct ToToml {
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(std::int64_t value) const { return fmt::format("{}", value); }
  std::string operator()(double value) const { return format_real(value); }
  std::string operator()(const std::string& value) const { return toml_string(value); }
  std::string operator()(const std::vector<std::string>& value) const {
    std::vector<std::string> items;
    std::ranges::transform(value, std::back_inserter(items), toml_string);
    return fmt::format("[{}]", fmt::join(items, ", "));
  }
};

template <class T>
std::optional<T> parse_number(const std::string& text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// For a misspelt word with a number.
std::string nearest_counted(const Option& option, const OptionValue& value) {
  const auto* kind = std::get_if<TextOption>(&option.kind);
  const auto* text = std::get_if<std::string>(&value);
  if (kind == nullptr || kind->counted.empty() || text == nullptr) return "";
  std::vector<std::string_view> words(kind->choices.begin(), kind->choices.end());
  words.insert(words.end(), kind->counted.begin(), kind->counted.end());
  const std::string_view word = std::string_view(*text).substr(0, text->find(':'));
  return std::ranges::count(words, word) > 0 ? "" : did_you_mean(word, words);
}

}  // namespace

CountedWord parse_counted(std::string_view text) {
  const std::size_t colon = text.find(':');
  if (colon == std::string_view::npos) return {std::string(text), 0};
  const auto count = parse_number<std::int64_t>(std::string(text.substr(colon + 1)));
  const bool fine = count && *count >= 1 && *count <= TextOption::kMaxCount;
  return {std::string(text.substr(0, colon)), fine ? *count : 0};
}

std::optional<std::int64_t> parse_size(std::string_view text) {
  struct Unit {
    std::string_view name;
    double bytes;
  };
  constexpr Unit kUnits[] = {{"TiB", 0x1p40}, {"GiB", 0x1p30}, {"MiB", 0x1p20}, {"KiB", 0x1p10}, {"TB", 1e12},
                             {"GB", 1e9},     {"MB", 1e6},     {"kB", 1e3},     {"B", 1}};
  constexpr double kMost = 0x1p60;
  for (const Unit& unit : kUnits) {
    if (!text.ends_with(unit.name)) continue;
    const std::string digits(text.substr(0, text.size() - unit.name.size()));
    if (digits.find_first_not_of("0123456789.") != std::string::npos) return std::nullopt;
    const auto number = parse_number<double>(digits);
    const double bytes = number ? std::round(*number * unit.bytes) : 0;
    if (bytes < 1 || bytes > kMost) return std::nullopt;
    return static_cast<std::int64_t>(bytes);
  }
  return std::nullopt;
}

void set_option(RunConfig& config, const Option& option, const OptionValue& value, std::string_view where) {
  FERRY_CHECK(std::visit(Store{config, value}, option.kind), kConfig, "{} = {}: expected {}{}", where,
              shown(to_toml(value)), allowed_values(option), nearest_counted(option, value));
}

bool is_allowed(const Option& option, const OptionValue& value) {
  RunConfig scratch;
  return std::visit(Store{scratch, value}, option.kind);
}

OptionValue parse_flag_text(const Option& option, const std::vector<std::string>& texts) {
  FERRY_ASSERT(!texts.empty());
  const std::string& text = texts.front();
  if (std::holds_alternative<ListOption>(option.kind)) return texts;
  if (std::holds_alternative<BoolOption>(option.kind) && (text == "true" || text == "false")) return text == "true";
  if (std::holds_alternative<IntOption>(option.kind)) {
    if (const auto value = parse_number<std::int64_t>(text)) return *value;
  }
  if (std::holds_alternative<RealOption>(option.kind)) {
    if (const auto value = parse_number<double>(text)) return *value;
  }
  return text;
}

OptionValue get_option(const RunConfig& config, const Option& option) {
  return std::visit(
      [&](const auto& kind) -> OptionValue {
        if constexpr (std::is_same_v<std::decay_t<decltype(kind)>, EnumOption>) {
          return std::string(kind.choices.at(static_cast<std::size_t>(kind.get(config))));
        } else {
          return config.*kind.field;
        }
      },
      option.kind);
}

std::string allowed_values(const Option& option) { return std::visit(Describe{}, option.kind); }

std::string to_toml(const OptionValue& value) { return std::visit(ToToml{}, value); }

void validate(const RunConfig& config, Command command) {
  if (command == Command::kGenerate || command == Command::kExport || command == Command::kInspect) return;
  constexpr std::int64_t kMaxRows = std::numeric_limits<std::int32_t>::max();
  const std::string accumulated = config.accumulate > 1 ? fmt::format(" times accumulate = {}", config.accumulate) : "";
  FERRY_CHECK(config.seq_len <= kMaxRows / config.sequences(), kConfig,
              "seq_len = {} times batch_size = {}{} is more than {} tokens in one step: lower one of them",
              config.seq_len, config.batch_size, accumulated, kMaxRows);
  if (command == Command::kEval) {
    FERRY_CHECK(!config.val_data.empty(), kConfig, "nothing to evaluate on: give --val-data FILE");
    return;
  }
  FERRY_CHECK(config.dtype == DType::kBf16 || config.optimizer_state == RunConfig::OptimizerState::kF32, kConfig,
              "optimizer_state = {} needs dtype = bf16: f32 weights keep f32 moments",
              config.optimizer_state == RunConfig::OptimizerState::kMixed ? "mixed" : "bf16");
  if (command == Command::kBench) return;
  FERRY_CHECK(!config.model.empty() || !config.init_from.empty(), kConfig,
              "no model: set model (a preset, a Hugging Face folder or a config.json) or init_from");
  if (command == Command::kPlan) return;
  FERRY_CHECK(!config.train_data.empty(), kConfig, "no training data: set train_data");
  FERRY_CHECK(config.steps == 0 || config.epochs == 0, kConfig,
              "steps = {} and epochs = {} are both given: give one of them", config.steps, config.epochs);
  FERRY_CHECK(config.steps != 0 || config.epochs != 0, kConfig, "no length of the run: give steps or epochs");
  FERRY_CHECK(config.eval_every == 0 || !config.val_data.empty(), kConfig,
              "eval_every = {} has nothing to evaluate: set val_data, or eval_every = 0", config.eval_every);
}

}  // namespace ferry
