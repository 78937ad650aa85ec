// SPDX-License-Identifier: Apache-2.0
// Byte-pair encoding: joins neighbours into longer tokens, in the order of a list of merges.
// Source: Sennrich, Haddow & Birch 2016, arXiv:1508.07909, section 3.2.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

namespace ferry {

class BpeMerges {
 public:
  /// Left and right become `result`; merges added first go first. A pair that was added before keeps its place.
  void add(std::int32_t left, std::int32_t right, std::int32_t result);

  bool empty() const { return rules_.empty(); }

  /// Applies the earliest merge that fits anywhere, leftmost first, until none fits. Cost: O(n log n).
  std::vector<std::int32_t> apply(const std::vector<std::int32_t>& ids) const;

 private:
  struct Rule {
    std::size_t rank = 0;
    std::int32_t result = 0;
  };

  const Rule* find(std::int32_t left, std::int32_t right) const;

  std::unordered_map<std::uint64_t, Rule> rules_;  // by both ids
};

}  // namespace ferry
