// SPDX-License-Identifier: Apache-2.0
// The text form of the options of a trace backend.
#include <algorithm>
#include <charconv>

#include "backend/trace_backend.h"
#include "core/error.h"

namespace ferry {
namespace {

constexpr std::string_view kName = "trace:cpu";

template <class Int>
Int parse_number(std::string_view name, std::string_view text) {
  Int value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  FERRY_CHECK(error == std::errc() && end == text.data() + text.size() && !text.starts_with('-'), kConfig,
              "backend is '{}': '{}' is not a number: expected 0 or more", name, text);
  return value;
}

void set(TraceOptions& options, std::string_view name, std::string_view option) {
  const std::size_t equals = std::min(option.find('='), option.size());
  const std::string_view key = option.substr(0, equals);
  const std::string_view value = option.substr(std::min(equals + 1, option.size()));
  if (key == "drop_wait") {
    options.drop_wait = parse_number<std::int64_t>(name, value);
  } else if (key == "delay") {
    options.delay = parse_number<std::uint64_t>(name, value);
  } else {
    FERRY_CHECK(option == "slow=copies", kConfig,
                "backend is '{}': '{}' is no option of trace: expected drop_wait=N, delay=SEED or slow=copies", name,
                option);
    options.slow_copies = true;
  }
}

}  // namespace

TraceOptions parse_trace_options(std::string_view name) {
  const bool traces_cpu = name == kName || (name.starts_with(kName) && name[kName.size()] == ',');
  FERRY_CHECK(traces_cpu, kConfig,
              "backend is '{}': trace follows the CPU backend alone: expected trace:cpu, and options after a comma, "
              "such as trace:cpu,delay=1",
              name);
  TraceOptions options;
  std::string_view rest = name.substr(kName.size());
  while (!rest.empty()) {
    rest.remove_prefix(1);  // the comma
    const std::size_t end = std::min(rest.find(','), rest.size());
    set(options, name, rest.substr(0, end));
    rest.remove_prefix(end);
  }
  return options;
}

}  // namespace ferry
