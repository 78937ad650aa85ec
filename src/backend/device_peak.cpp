// SPDX-License-Identifier: Apache-2.0
// A table of peaks; of several names that fit, the longest counts.
#include "backend/device_peak.h"

#include <cctype>
#include <cstddef>

namespace ferry {
namespace {

struct Peak {
  std::string_view name;
  double tera_flops;
};

constexpr Peak kPeaks[] = {
    {"B200", 2250},     {"GH200", 989},        {"H200", 989},     {"H200 NVL", 835}, {"H100", 989},
    {"H100 NVL", 835},  {"H100 PCIe", 756},    {"H800", 989},     {"A100", 312},     {"A800", 312},
    {"A30", 165},       {"A40", 149.7},        {"A10", 125},      {"L4", 121},       {"L40S", 362},
    {"RTX A6000", 155}, {"RTX 6000 Ada", 364}, {"RTX 4090", 165}, {"RTX 3090", 71},
};

bool is_word_part(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }

/// `words` occurs in `text`, not as part of a longer word.
bool has_words(std::string_view text, std::string_view words) {
  for (std::size_t at = text.find(words); at != std::string_view::npos; at = text.find(words, at + 1)) {
    const std::size_t end = at + words.size();
    if ((at == 0 || !is_word_part(text[at - 1])) && (end == text.size() || !is_word_part(text[end]))) return true;
  }
  return false;
}

}  // namespace

std::optional<double> dense_bf16_peak(std::string_view description) {
  if (!has_words(description, "NVIDIA") || has_words(description, "MIG") || has_words(description, "Laptop")) {
    return std::nullopt;
  }
  const Peak* best = nullptr;
  for (const Peak& peak : kPeaks) {
    if (has_words(description, peak.name) && (best == nullptr || peak.name.size() > best->name.size())) best = &peak;
  }
  return best == nullptr ? std::nullopt : std::optional(best->tera_flops * 1e12);
}

}  // namespace ferry
