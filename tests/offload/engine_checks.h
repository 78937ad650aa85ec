// SPDX-License-Identifier: Apache-2.0
// Properties of the engine that hold on every backend; each is called from a test case of the CPU and one of the GPU.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "offload/tiny_model.h"

namespace ferry::test {

/// What a short training run leaves behind, to the bit.
struct TrainedBits {
  std::vector<double> losses;
  std::vector<double> norms;  // of the gradients
  double evaluated = 0;
  std::vector<std::byte> weight, low, m, v;
  bool operator==(const TrainedBits&) const = default;
};

/// A way to run a step that differs in arithmetic, order or memory from the default.
struct Variant {
  std::string name;
  std::function<void(EngineOptions&)> apply;

  EngineOptions of(EngineOptions options) const;
};
/// The default, each option on its own, and mixtures. All but the default need at least two sequences.
std::vector<Variant> variants();

/// A model of several pieces and chunks, with weight decay.
EngineOptions several_pieces(DType dtype, OptimizerState state);

/// Trains with evaluation and a smaller batch in between, so that every kind of pass follows every other.
TrainedBits train(const std::string& backend_name, int backend_threads, bool tied, const EngineOptions& options);

void check_f32_against_pytorch(const std::string& backend_name);
void check_bf16_against_pytorch(const std::string& backend_name);
void check_evaluation_against_pytorch(const std::string& backend_name);
void check_offloaded_equals_resident(const std::string& backend_name);
void check_layout_changes_no_bit(const std::string& backend_name);
void check_placement_changes_no_bit(const std::string& backend_name);
void check_norm_against_pytorch(const std::string& backend_name);
void check_recomputation_changes_no_bit(const std::string& backend_name);
void check_accumulation_changes_rounding_only(const std::string& backend_name);

}  // namespace ferry::test
