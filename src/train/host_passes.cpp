// SPDX-License-Identifier: Apache-2.0
// Plain SSE2: memory is what bounds every pass.
// Source    the triad: McCalpin 1995, "Memory bandwidth and machine balance in current high performance computers".
#include "train/host_passes.h"

#include <emmintrin.h>
#include <fmt/core.h>

#include <array>
#include <cstring>

#include "core/error.h"

namespace ferry {
namespace {

struct Format {
  const char* name;
  OptimizerState state;
  Rounding rounding;

  /// Read and written, but for the gradient, which is read.
  std::int64_t bytes_per_param() const {
    const std::size_t low = has_weight_low(DType::kBf16, state) ? size_of(DType::kI16) : 0;
    const std::size_t kept = size_of(DType::kBf16) + low + 2 * size_of(moment_dtype(DType::kBf16, state));
    return static_cast<std::int64_t>(2 * kept + size_of(DType::kBf16));
  }
};

constexpr std::array<Format, HostPasses::kFormats> kFormatTable = {
    {Format{"f32", OptimizerState::kF32, Rounding::kStochastic},
     Format{"mixed", OptimizerState::kMixed, Rounding::kStochastic},
     Format{"bf16", OptimizerState::kBf16, Rounding::kStochastic},
     Format{"bf16 nearest", OptimizerState::kBf16, Rounding::kNearest}}};

constexpr std::int64_t kPieceElems = std::int64_t{8} << 20;   // 16 MiB of weights: EngineOptions::piece_bytes
constexpr std::int64_t kBlockBytes = std::int64_t{64} << 10;  // of the triad and the pass in place, for a task
constexpr std::int64_t kVector = 16;                          // bytes
constexpr std::int64_t kLineBytes = 64;
constexpr std::int64_t kPrefetchBytes = 2048;  // as far ahead as AdamW looks
constexpr std::int64_t kBytes = 14;            // of a parameter: weight, its rest, two f32 moments, gradient

template <class Fn>
void for_each_block(ThreadPool& pool, Fn&& fn, std::int64_t size_bytes) {
  pool.parallel_for(size_bytes / kBlockBytes, [&](std::int64_t block) { fn(block * kBlockBytes); });
}

void add_scaled(std::byte* to, const std::byte* from, const std::byte* scaled) {
  const __m128 factor = _mm_set1_ps(0.5F);
  for (std::int64_t i = 0; i < kBlockBytes; i += kVector) {
    const __m128 b = _mm_load_ps(reinterpret_cast<const float*>(from + i));
    const __m128 c = _mm_load_ps(reinterpret_cast<const float*>(scaled + i));
    _mm_stream_ps(reinterpret_cast<float*>(to + i), _mm_add_ps(b, _mm_mul_ps(factor, c)));
  }
  _mm_sfence();
}

/// The complement, and thus 0 again after the second pass.
void rewrite(std::byte* data) {
  const __m128i ones = _mm_set1_epi32(-1);
  for (std::int64_t i = 0; i < kBlockBytes; i += kVector) {
    auto* const vector = reinterpret_cast<__m128i*>(data + i);
    if (i % kLineBytes == 0) _mm_prefetch(reinterpret_cast<const char*>(vector) + kPrefetchBytes, _MM_HINT_T0);
    _mm_store_si128(vector, _mm_xor_si128(_mm_load_si128(vector), ones));
  }
}

}  // namespace

HostPasses::HostPasses(Backend& backend, std::int64_t n_params, ThreadPool& first_touch)
    : n_(n_params / kPieceElems * kPieceElems),
      memory_(backend.allocate_host(static_cast<std::size_t>(n_ * kBytes), "the arrays of AdamW")) {
  FERRY_CHECK(n_ > 0, kConfig, "{} parameters to update: expected {} or more", n_params, kPieceElems);
  for_each_block(
      first_touch, [this](std::int64_t at) { std::memset(data() + at, 0, kBlockBytes); }, n_ * kBytes);
}

const char* HostPasses::format_name(std::size_t format) { return kFormatTable.at(format).name; }

std::string HostPasses::format_label(std::size_t format) {
  return fmt::format("{} ({} B)", format_name(format), bytes_per_param(format));
}

std::int64_t HostPasses::bytes_per_param(std::size_t format) { return kFormatTable.at(format).bytes_per_param(); }

std::int64_t HostPasses::third() const { return n_ * kBytes / 3 / kBlockBytes * kBlockBytes; }

double HostPasses::bytes(std::size_t pass) const {
  if (pass == kTriad) return static_cast<double>(3 * third());
  return static_cast<double>(n_ * (pass == kInPlace ? 2 * kBytes : bytes_per_param(pass - kAdamw)));
}

void HostPasses::run(std::size_t pass, SimdLevel level, ThreadPool& pool) {
  if (pass == kTriad) {
    const std::int64_t size = third();
    const auto add = [&](std::int64_t at) { add_scaled(data() + at, data() + size + at, data() + 2 * size + at); };
    for_each_block(pool, add, size);
  } else if (pass == kInPlace) {
    for_each_block(
        pool, [this](std::int64_t at) { rewrite(data() + at); }, n_ * kBytes);
  } else {
    update(pass - kAdamw, level, pool);
  }
}

void HostPasses::update(std::size_t format, SimdLevel level, ThreadPool& pool) {
  const AdamwScalars scalars = adamw_scalars({.rounding = kFormatTable.at(format).rounding}, 1e-4, 1, true);
  for (std::int64_t first = 0; first < n_; first += kPieceElems) {
    adamw_update(range(format, first), scalars, level, pool);
  }
}

AdamwRange HostPasses::range(std::size_t format, std::int64_t first) const {
  const OptimizerState state = kFormatTable.at(format).state;
  const auto moment_bytes = static_cast<std::int64_t>(size_of(moment_dtype(DType::kBf16, state)));
  const bool has_low = has_weight_low(DType::kBf16, state);
  return {.dtype = DType::kBf16,
          .state = state,
          .weight = data() + 2 * first,
          .weight_low = has_low ? reinterpret_cast<std::int16_t*>(data() + 2 * n_) + first : nullptr,
          .m = data() + 4 * n_ + moment_bytes * first,
          .v = data() + 8 * n_ + moment_bytes * first,
          .gradient = data() + 12 * n_ + 2 * first,
          .n = kPieceElems,
          .parameter = 0,
          .element = first};
}

}  // namespace ferry
