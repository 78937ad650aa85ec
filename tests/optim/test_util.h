// SPDX-License-Identifier: Apache-2.0
// Shared by the tests of this folder: noise, parameters in every storage format, error messages.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/error.h"
#include "optim/adamw.h"

namespace ferry::test {

/// A hash of (element, step), exact in f32: [-1, 1) times a power of two that depends on the element.
/// tests/fixtures/make_adamw_fixtures.py computes the same.
inline float noise(std::int64_t element, std::int64_t step) {
  std::uint32_t x =
      static_cast<std::uint32_t>(element) * 2654435761U + static_cast<std::uint32_t>(step) * 2246822519U + 374761393U;
  x ^= x >> 15;
  x *= 2246822519U;
  x ^= x >> 13;
  x *= 3266489917U;
  x ^= x >> 16;
  const double unit = (static_cast<double>(x >> 8) - 8388608.0) / 8388608.0;
  return static_cast<float>(std::ldexp(unit, -static_cast<int>(element % 12)));
}

/// The message of the ferry::Error that fn throws, "" when it throws none.
inline std::string error_of(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

struct Format {
  const char* name;
  DType dtype;
  OptimizerState state;
  Rounding rounding;
};

inline constexpr Format kFormats[] = {
    {"f32", DType::kF32, OptimizerState::kF32, Rounding::kNearest},
    {"bf16 weights, f32 state", DType::kBf16, OptimizerState::kF32, Rounding::kNearest},
    {"bf16 weights, bf16 state, nearest", DType::kBf16, OptimizerState::kBf16, Rounding::kNearest},
    {"bf16 weights, bf16 state, stochastic", DType::kBf16, OptimizerState::kBf16, Rounding::kStochastic},
    {"bf16 weights, mixed state, nearest", DType::kBf16, OptimizerState::kMixed, Rounding::kNearest},
    {"bf16 weights, mixed state, stochastic", DType::kBf16, OptimizerState::kMixed, Rounding::kStochastic},
};

/// As adamw_scalars, with the rounding of a format.
inline AdamwScalars scalars_of(const Format& format, AdamwOptions options, double lr, std::int64_t step) {
  options.rounding = format.rounding;
  options.seed = 11;
  return adamw_scalars(options, lr, step, true);
}

/// n parameters and their state, `offset` elements past an aligned address, between guard elements.
class Parameters {
 public:
  Parameters(Format format, std::int64_t n, std::int64_t offset = 0)
      : format_(format),
        n_(n),
        offset_(offset),
        weight_(array(size_of(format.dtype))),
        low_(array(has_weight_low(format.dtype, format.state) ? 2 : 0)),
        m_(array(moment_bytes())),
        v_(array(moment_bytes())),
        gradient_(array(size_of(format.dtype))) {}

  AdamwRange range() {
    const auto offset = static_cast<std::size_t>(offset_);
    AdamwRange range;
    range.dtype = format_.dtype;
    range.state = format_.state;
    range.weight = weight_.data() + offset * size_of(format_.dtype);
    range.weight_low = low_.empty() ? nullptr : reinterpret_cast<std::int16_t*>(low_.data()) + offset;
    range.m = m_.data() + offset * moment_bytes();
    range.v = v_.data() + offset * moment_bytes();
    range.gradient = gradient_.data() + offset * size_of(format_.dtype);
    range.n = n_;
    range.parameter = 3;
    range.element = (std::int64_t{1} << 32) - 100;  // hashes take its lower half
    return range;
  }

  float weight(std::int64_t i) {
    const AdamwRange r = range();
    if (r.weight_low) return join_f32(static_cast<const Bf16*>(r.weight)[i], r.weight_low[i]);
    return get(r.weight, size_of(format_.dtype), i);
  }
  float m(std::int64_t i) { return get(range().m, moment_bytes(), i); }
  float v(std::int64_t i) { return get(range().v, moment_bytes(), i); }
  float gradient(std::int64_t i) { return get(range().gradient, size_of(format_.dtype), i); }

  void set_weight(std::int64_t i, float value) {
    const AdamwRange r = range();
    if (!r.weight_low) return set(r.weight, size_of(format_.dtype), i, value);
    const SplitF32 split = split_f32(value);
    static_cast<Bf16*>(r.weight)[i] = split.high;
    r.weight_low[i] = split.low;
  }
  void set_m(std::int64_t i, float value) { set(range().m, moment_bytes(), i, value); }
  void set_v(std::int64_t i, float value) { set(range().v, moment_bytes(), i, value); }
  void set_gradient(std::int64_t i, float value) {
    set(gradient_.data() + static_cast<std::size_t>(offset_) * size_of(format_.dtype), size_of(format_.dtype), i,
        value);
  }

  /// Weights noise(i, 0), moments 0.
  void fill() {
    for (std::int64_t i = 0; i < n_; ++i) {
      set_weight(i, noise(i, 0));
      set_m(i, 0);
      set_v(i, 0);
    }
  }
  void fill_gradient(std::int64_t step) { fill_scaled_gradient(step, 1); }
  void fill_scaled_gradient(std::int64_t step, float scale) {
    for (std::int64_t i = 0; i < n_; ++i) set_gradient(i, scale * noise(i, step));
  }
  /// With a zero or an infinity, a denormal or a NaN among the noise.
  void fill_delicate_gradient(std::int64_t step) {
    fill_gradient(step);
    if (n_ > 20) set_gradient(20, step == 3 ? std::numeric_limits<float>::infinity() : 0);
    if (n_ > 21) set_gradient(21, step == 4 ? -std::numeric_limits<float>::quiet_NaN() : 1e-42F);
  }

  bool same_bits_as(const Parameters& other) const {
    return same_bits(weight_, other.weight_) && same_bits(low_, other.low_) && same_bits(m_, other.m_) &&
           same_bits(v_, other.v_) && same_bits(gradient_, other.gradient_);
  }

 private:
  static constexpr std::int64_t kGuard = 16;

  std::size_t moment_bytes() const { return size_of(moment_dtype(format_.dtype, format_.state)); }
  std::vector<std::uint8_t> array(std::size_t element_bytes) const {
    return std::vector<std::uint8_t>(static_cast<std::size_t>(n_ + offset_ + kGuard) * element_bytes, 0x5a);
  }
  static float get(const void* data, std::size_t element_bytes, std::int64_t i) {
    return element_bytes == 4 ? static_cast<const float*>(data)[i] : to_f32(static_cast<const Bf16*>(data)[i]);
  }
  static void set(void* data, std::size_t element_bytes, std::int64_t i, float value) {
    if (element_bytes == 4) {
      static_cast<float*>(data)[i] = value;
    } else {
      static_cast<Bf16*>(data)[i] = to_bf16(value);
    }
  }

  Format format_;
  std::int64_t n_;
  std::int64_t offset_;
  std::vector<std::uint8_t> weight_, low_, m_, v_, gradient_;
};

/// Weights and moments with a few delicate values among the noise.
inline Parameters delicate_parameters(Format format, std::int64_t n, std::int64_t offset = 0) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr std::array<float, 8> kWeights = {-0.0F, 1e-40F, -1e-45F, kInf, -kNan, 1.00390625F, 3.4e38F, 0.0F};
  Parameters p(format, n, offset);
  p.fill();
  for (std::int64_t i = 0; i < n; ++i) {
    p.set_m(i, noise(i, 1000));
    p.set_v(i, std::abs(noise(i, 1001)));
    if (i % 5 == 4) p.set_weight(i, kWeights[static_cast<std::size_t>(i / 5) % kWeights.size()]);
    if (i % 31 == 7) p.set_v(i, 1e-41F);
    if (i % 37 == 3) p.set_m(i, -kNan);
    if (i % 53 == 2) p.set_v(i, -1);
  }
  return p;
}

}  // namespace ferry::test
