// SPDX-License-Identifier: Apache-2.0
// Tiny models for the engine's tests: PyTorch's fixtures, or random ones, with batches.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "config/model_config.h"
#include "data/batch_loader.h"
#include "offload/engine.h"

namespace ferry::test {

/// One case of tests/fixtures/model: see make_model_fixtures.py for its tensors.
struct ModelFixture {
  ModelConfig config;
  Batch batch;
  std::map<std::string, std::vector<float>> tensors;  // all floating tensors, as f32

  explicit ModelFixture(const std::string& name);
  const std::vector<float>& tensor(const std::string& name) const { return tensors.at(name); }
};

/// Names of all cases.
std::vector<std::string> model_fixtures();

void load_weights(Engine& engine, const ModelFixture& fixture);

/// A model with several heads, a few layers and an odd vocabulary.
ModelConfig small_config(bool tied);

/// Random tokens, every seventh target masked; depends on (seed, step) alone.
Batch random_batch(const ModelConfig& config, std::int64_t batch_size, std::int64_t seq_len, std::uint64_t step);

/// One array of every parameter, as bytes in table order.
std::vector<std::byte> snapshot(Engine& engine, ParameterArray array);

/// One array of every parameter as f32, by name.
std::map<std::string, std::vector<float>> values(Engine& engine, ParameterArray array);

/// |got - want| / |want|, Euclidean.
double relative_error(const std::vector<float>& got, const std::vector<float>& want);

}  // namespace ferry::test
