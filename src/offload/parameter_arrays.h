// SPDX-License-Identifier: Apache-2.0
// The flat arrays over the parameter space: weights, what AdamW keeps, gradients; each segment in host slabs or on the
// device.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/tensor_view.h"
#include "model/parameter_table.h"
#include "offload/pieces.h"
#include "optim/adamw.h"

namespace ferry {

enum class ParameterArray { kWeight, kWeightLow, kFirstMoment, kSecondMoment, kGradient };
inline constexpr int kParameterArrays = 5;

/// Where a segment's weights, gradients and optimizer state live.
enum class Home : std::uint8_t { kHost, kDevice };

/// What is kept of which parameter, and where.
struct ArrayLayout {
  DType dtype = DType::kF32;  // of weights and gradients
  OptimizerState state = OptimizerState::kF32;
  bool training = true;        // false: weights alone
  std::vector<Home> homes;     // by segment
  std::vector<bool> trained;   // by parameter; the others cost no state
  std::vector<bool> gradient;  // by segment: it keeps its gradient in an array of its home
};

/// Views by offset into the flat space; somebody else owns the memory. What is not kept is an absent view.
class ParameterArrays {
 public:
  ParameterArrays(const ParameterTable& parameters, const ArrayLayout& layout);

  DType dtype() const { return dtype_; }
  OptimizerState state() const { return state_; }
  /// bf16 weights with f32 or mixed state keep the rest of the f32 master.
  bool split_master() const { return has_weight_low(dtype_, state_); }
  DType dtype_of(ParameterArray array) const;

  /// Memory that an array takes at one home; 0 when nothing of it lives there.
  std::size_t size_bytes(ParameterArray array, Home home) const;
  void bind(ParameterArray array, Home home, void* data);

  /// The elements lie in one segment (weights, gradients), or in one parameter (AdamW's arrays).
  TensorView at(ParameterArray array, std::int64_t offset, std::int64_t elems) const;
  TensorView weights_at(std::int64_t offset, std::int64_t elems) const {
    return at(ParameterArray::kWeight, offset, elems);
  }
  TensorView gradients_at(std::int64_t offset, std::int64_t elems) const {
    return at(ParameterArray::kGradient, offset, elems);
  }
  Home home_of(std::int64_t offset) const;
  /// Whether the array holds the element.
  bool keeps(ParameterArray array, std::int64_t offset) const { return find(array, offset) != nullptr; }

 private:
  /// Elements [offset, offset + elems) of the flat space are elements [place, place + elems) of their home's array.
  struct Run {
    std::int64_t offset = 0;
    std::int64_t elems = 0;
    std::int64_t place = 0;
    Home home = Home::kHost;
  };
  using PerHome = std::array<std::int64_t, 2>;
  struct Array {
    std::vector<Run> runs;  // by offset
    PerHome elems{};
    std::array<void*, 2> data{};
  };

  void add_run(ParameterArray array, std::int64_t offset, std::int64_t elems, Home home);
  const Run* find(ParameterArray array, std::int64_t offset) const;
  Array& array_of(ParameterArray array) { return arrays_[static_cast<std::size_t>(array)]; }
  const Array& array_of(ParameterArray array) const { return arrays_[static_cast<std::size_t>(array)]; }

  DType dtype_;
  OptimizerState state_;
  std::array<Array, kParameterArrays> arrays_;
};

/// What AdamW updates in place for a part of a parameter; `gradient` has its elements.
AdamwRange adamw_range(const ParameterArrays& arrays, const ParameterRange& part, const void* gradient);

/// Rounds `values` to the weights' dtype; with a split master, `weight_low` takes the rest.  Both: values.size()
/// elements.
void store_weights(std::span<const float> values, const TensorView& weight, const TensorView& weight_low);

}  // namespace ferry
