// SPDX-License-Identifier: Apache-2.0
// RoPE frequencies, with the three kinds of rope_scaling.
// Source: Su et al. 2021, arXiv:2104.09864; transformers' modeling_rope_utils for `linear` and `llama3`.
#include <cmath>
#include <numbers>

#include "model/llama.h"

namespace ferry {
namespace {

/// Long wavelengths are slowed by `factor`, short ones kept, those between are blended linearly.
double llama3_frequency(double frequency, const RopeScaling& scaling) {
  const auto original = static_cast<double>(scaling.original_max_position_embeddings);
  const double wavelength = 2 * std::numbers::pi / frequency;
  if (wavelength < original / scaling.high_freq_factor) return frequency;
  if (wavelength > original / scaling.low_freq_factor) return frequency / scaling.factor;
  const double smooth =
      (original / wavelength - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1 - smooth) * frequency / scaling.factor + smooth * frequency;
}

double scaled_frequency(double frequency, const RopeScaling& scaling) {
  switch (scaling.type) {
    case RopeScaling::Type::kDefault: return frequency;
    case RopeScaling::Type::kLinear: return frequency / scaling.factor;
    case RopeScaling::Type::kLlama3: return llama3_frequency(frequency, scaling);
  }
  return frequency;
}

}  // namespace

void fill_rope_table(const ModelConfig& config, std::int64_t seq_len, float* cos, float* sin) {
  const std::int64_t half = config.head_dim / 2;
  for (std::int64_t j = 0; j < half; ++j) {
    const double exponent = static_cast<double>(2 * j) / static_cast<double>(config.head_dim);
    const double frequency = scaled_frequency(std::pow(config.rope_theta, -exponent), config.rope_scaling);
    for (std::int64_t t = 0; t < seq_len; ++t) {
      const double angle = static_cast<double>(t) * frequency;
      cos[t * half + j] = static_cast<float>(std::cos(angle));
      sin[t * half + j] = static_cast<float>(std::sin(angle));
    }
  }
}

}  // namespace ferry
