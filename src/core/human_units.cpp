// SPDX-License-Identifier: Apache-2.0
// Suffixes and rounding of human-readable numbers.
#include "core/human_units.h"

#include <fmt/core.h>

#include <array>
#include <cmath>

namespace ferry {
namespace {

/// Three significant digits; `scaled` < 1000 or so.
std::string three_digits(double scaled) {
  if (scaled >= 99.95) return fmt::format("{:.0f}", scaled);
  return scaled >= 9.995 ? fmt::format("{:.1f}", scaled) : fmt::format("{:.2f}", scaled);
}

}  // namespace

std::string human_count(double value) {
  if (!std::isfinite(value) || value < 0) return "-";
  if (value < 999.5) return value == std::floor(value) ? fmt::format("{:.0f}", value) : three_digits(value);
  constexpr std::array<const char*, 4> kSuffixes{"k", "M", "G", "T"};
  std::size_t i = 0;
  value /= 1000;
  while (value >= 999.5 && i + 1 < kSuffixes.size()) {
    value /= 1000;
    ++i;
  }
  return three_digits(value) + kSuffixes[i];
}

std::string human_bytes(std::size_t size_bytes) {
  if (size_bytes < 1024) return fmt::format("{} B", size_bytes);
  constexpr std::array<const char*, 6> kSuffixes{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double scaled = static_cast<double>(size_bytes) / 1024;
  std::size_t i = 0;
  while (scaled >= 1023.5 && i + 1 < kSuffixes.size()) {
    scaled /= 1024;
    ++i;
  }
  return fmt::format("{:.{}f} {}", scaled, scaled < 99.95 ? 1 : 0, kSuffixes[i]);
}

std::string human_step_time(double seconds) {
  const bool in_seconds = seconds >= 10;
  const double value = in_seconds ? seconds : seconds * 1e3;
  const char* unit = in_seconds ? "s" : "ms";
  return value < 100 ? fmt::format("{:.3g} {}", value, unit) : fmt::format("{:.0f} {}", value, unit);
}

std::string human_duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "-";
  const auto total = static_cast<long long>(std::llround(seconds));
  if (total < 60) return fmt::format("{}s", total);
  if (total < 3600) return fmt::format("{}m{:02}s", total / 60, total % 60);
  return fmt::format("{}h{:02}m", total / 3600, total / 60 % 60);
}

}  // namespace ferry
