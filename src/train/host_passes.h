// SPDX-License-Identifier: Apache-2.0
// Passes over host memory: AdamW as the engine runs it, and what the memory gives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "backend/backend.h"
#include "core/simd.h"
#include "core/thread_pool.h"
#include "optim/adamw.h"

namespace ferry {

/// bf16 weights and the arrays of AdamW's widest format, in one block of a backend's host memory. Passes by number:
///   kTriad     a = b + s * c, stored past the caches
///   kInPlace   each word is read and written, without arithmetic
///   kAdamw...  AdamW in pieces, one pass for each format
class HostPasses {
 public:
  static constexpr std::size_t kTriad = 0;
  static constexpr std::size_t kInPlace = 1;
  static constexpr std::size_t kAdamw = 2;
  static constexpr std::size_t kFormats = 4;
  static constexpr std::size_t kCount = kAdamw + kFormats;

  /// 14 bytes for each of `n_params`, rounded down to whole pieces; zeros, first touched by the pool. Throws
  /// Error{kConfig} for less than a piece, Error{kMemory}.
  HostPasses(Backend& backend, std::int64_t n_params, ThreadPool& first_touch);

  /// "mixed"
  static const char* format_name(std::size_t format);
  /// "mixed (18 B)": with the bytes that an update reads and writes per parameter, the gradient included.
  static std::string format_label(std::size_t format);
  static std::int64_t bytes_per_param(std::size_t format);

  /// What a pass reads and writes.
  double bytes(std::size_t pass) const;
  /// How often a pass is run before another one: passes in place come in pairs, which leave zeros.
  static int turns(std::size_t pass) { return pass == kInPlace ? 2 : 1; }
  /// Blocks.
  void run(std::size_t pass, SimdLevel level, ThreadPool& pool);

 private:
  std::byte* data() const { return static_cast<std::byte*>(memory_.data()); }
  std::int64_t third() const;  // bytes of each array of the triad
  AdamwRange range(std::size_t format, std::int64_t first) const;
  void update(std::size_t format, SimdLevel level, ThreadPool& pool);

  const std::int64_t n_;
  Buffer memory_;
};

}  // namespace ferry
