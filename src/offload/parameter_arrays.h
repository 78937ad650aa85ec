// SPDX-License-Identifier: Apache-2.0
// The flat arrays over the parameter space: weights, what AdamW keeps, gradients; in host slabs or on the device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/tensor_view.h"
#include "optim/adamw.h"

namespace ferry {

enum class ParameterArray { kWeight, kWeightLow, kFirstMoment, kSecondMoment };

/// Views by offset into arrays that somebody else owns; an array that is not kept is null.
struct ParameterArrays {
  DType dtype = DType::kF32;  // of weights and gradients
  OptimizerState state = OptimizerState::kF32;
  void* weight = nullptr;
  void* weight_low = nullptr;
  void* m = nullptr;
  void* v = nullptr;
  void* gradient = nullptr;

  /// bf16 weights with f32 state keep the rest of the f32 master.
  bool split_master() const { return dtype == DType::kBf16 && state == OptimizerState::kF32; }
  DType moment_dtype() const {
    return dtype == DType::kBf16 && state == OptimizerState::kBf16 ? DType::kBf16 : DType::kF32;
  }

  TensorView weights_at(std::int64_t offset, std::int64_t elems) const { return view(weight, dtype, offset, elems); }
  TensorView weights_low_at(std::int64_t offset, std::int64_t elems) const {
    return view(weight_low, DType::kI16, offset, elems);
  }
  TensorView m_at(std::int64_t offset, std::int64_t elems) const { return view(m, moment_dtype(), offset, elems); }
  TensorView v_at(std::int64_t offset, std::int64_t elems) const { return view(v, moment_dtype(), offset, elems); }
  TensorView gradients_at(std::int64_t offset, std::int64_t elems) const {
    return view(gradient, dtype, offset, elems);
  }
  TensorView at(ParameterArray array, std::int64_t offset, std::int64_t elems) const;

 private:
  static TensorView view(void* base, DType type, std::int64_t offset, std::int64_t elems) {
    if (base == nullptr) return {};
    return {static_cast<std::byte*>(base) + offset * static_cast<std::int64_t>(size_of(type)), type, {elems}};
  }
};

/// Rounds `values` to the weights' dtype; with a split master, `weight_low` takes the rest.  Both: values.size()
/// elements.
void store_weights(const ParameterArrays& arrays, std::span<const float> values, const TensorView& weight,
                   const TensorView& weight_low);

}  // namespace ferry
