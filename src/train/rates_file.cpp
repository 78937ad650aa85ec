// SPDX-License-Identifier: Apache-2.0
// One table of rates for both ways.
#include "train/rates_file.h"

#include <fmt/chrono.h>
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <system_error>

#include "core/error.h"
#include "io/json_events.h"
#include "io/printable.h"

namespace ferry {
namespace {

constexpr const char* kFormat = "ferry machine rates";
constexpr std::int64_t kVersion = 1;
constexpr std::int64_t kMaxThreads = 4096;  // of the option `threads`
constexpr std::size_t kLargestBytes = 64 << 10;
/// No machine is outside of these, and seconds stay finite within.
constexpr double kLeastRate = 1e3;
constexpr double kMostRate = 1e18;

struct Rate {
  const char* key;
  double MachineRates::*field;
};
constexpr std::array kRates = {Rate{"products_flop_s", &MachineRates::products_flop_s},
                               Rate{"attention_forward_flop_s", &MachineRates::attention_forward_flop_s},
                               Rate{"attention_backward_flop_s", &MachineRates::attention_backward_flop_s},
                               Rate{"device_bytes_s", &MachineRates::device_bytes_s},
                               Rate{"h2d_bytes_s", &MachineRates::h2d_bytes_s},
                               Rate{"h2d_both_bytes_s", &MachineRates::h2d_both_bytes_s},
                               Rate{"d2h_both_bytes_s", &MachineRates::d2h_both_bytes_s},
                               Rate{"adamw_bytes_s", &MachineRates::adamw_bytes_s},
                               Rate{"host_bytes_s", &MachineRates::host_bytes_s}};

struct Text {
  const char* key;
  std::string RatesFile::*field;
};
constexpr std::array kTexts = {Text{"backend", &RatesFile::backend}, Text{"device", &RatesFile::description},
                               Text{"date", &RatesFile::date}};

/// Fills a RatesFile from the values of a file, in any order.
class Reader {
 public:
  explicit Reader(std::string origin) : origin_(std::move(origin)) {}

  void on_event(const JsonEvent& event) {
    if (event.path.empty()) {
      FERRY_CHECK(event.kind == JsonEvent::Kind::kObject, kIo, "{}: {}, expected an object: {}", origin_,
                  describe(event), kAdvice);
      return;
    }
    const std::string& key = event.path.front();
    seen_.insert(key);
    if (key == "format") return check(event, event.text == kFormat, fmt::format("\"{}\"", kFormat));
    if (key == "version") return check(event, integer(event) == kVersion, fmt::format("{}", kVersion));
    if (key == "threads") return read_threads(event);
    if (const auto* rate = std::ranges::find(kRates, key, &Rate::key); rate != kRates.end()) {
      return read_rate(event, file_.rates.*rate->field);
    }
    const auto* text = std::ranges::find(kTexts, key, &Text::key);
    FERRY_CHECK(text != kTexts.end(), kIo, "{}: unknown key '{}': {}", origin_, printable_name(key), kAdvice);
    check(event, event.kind == JsonEvent::Kind::kString, "a text");
    file_.*text->field = event.text;
  }

  RatesFile finish() {
    const auto require = [this](const char* key) {
      FERRY_CHECK(seen_.contains(key), kIo, "{}: no key '{}': {}", origin_, key, kAdvice);
    };
    for (const char* key : {"format", "version", "threads"}) require(key);
    for (const Text& text : kTexts) require(text.key);
    for (const Rate& rate : kRates) require(rate.key);
    return std::move(file_);
  }

 private:
  static constexpr const char* kAdvice = "give a file that `ferry bench machine --rates` has written";

  void check(const JsonEvent& event, bool fits, const std::string& expected) const {
    FERRY_CHECK(fits, kIo, "{}: {} is {}, expected {}: {}", origin_, event.path.front(), describe(event), expected,
                kAdvice);
  }

  static std::int64_t integer(const JsonEvent& event) {
    return event.kind == JsonEvent::Kind::kInteger ? event.integer : -1;
  }

  void read_threads(const JsonEvent& event) {
    const std::int64_t threads = integer(event);
    check(event, threads >= 1 && threads <= kMaxThreads, fmt::format("an integer from 1 to {}", kMaxThreads));
    file_.threads = static_cast<int>(threads);
  }

  void read_rate(const JsonEvent& event, double& rate) const {
    double value = 0;  // words are no numbers, and strings are not asked
    const char* end = event.text.data() + event.text.size();
    const bool is_number = event.kind == JsonEvent::Kind::kInteger || event.kind == JsonEvent::Kind::kOther;
    const auto [stop, error] = std::from_chars(event.text.data(), end, value);
    check(event, is_number && error == std::errc() && stop == end && value >= kLeastRate && value <= kMostRate,
          fmt::format("a number from {:g} to {:g}", kLeastRate, kMostRate));
    rate = value;
  }

  const std::string origin_;
  RatesFile file_;
  std::set<std::string, std::less<>> seen_;
};

}  // namespace

std::string to_json(const RatesFile& file) {
  nlohmann::ordered_json json{{"format", kFormat}, {"version", kVersion}};
  for (const Text& text : kTexts) json[text.key] = file.*text.field;
  json["threads"] = file.threads;
  for (const Rate& rate : kRates) json[rate.key] = file.rates.*rate.field;
  return json.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

RatesFile read_rates_file(const std::filesystem::path& path) {
  constexpr int kDepth = 1;
  Reader reader(printable_name(path.string()));
  read_json_file(path, kLargestBytes, kDepth, [&reader](const JsonEvent& event) { reader.on_event(event); });
  return reader.finish();
}

std::string today() { return fmt::format("{:%Y-%m-%d}", fmt::gmtime(std::chrono::system_clock::now())); }

}  // namespace ferry
