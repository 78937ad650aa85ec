// SPDX-License-Identifier: Apache-2.0
// Placing segments and parameters in the arrays of their homes, and storing f32 values as weights.
#include "offload/parameter_arrays.h"

#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "core/int_math.h"

namespace ferry {

ParameterArrays::ParameterArrays(const ParameterTable& parameters, const ArrayLayout& layout)
    : dtype_(layout.dtype), state_(layout.state) {
  const auto& segments = parameters.segments();
  FERRY_ASSERT(layout.homes.size() == segments.size());
  for (std::size_t i = 0; i < segments.size(); ++i) {
    add_run(ParameterArray::kWeight, segments[i].offset, segments[i].elems, layout.homes[i]);
  }
  if (!layout.training) return;
  FERRY_ASSERT(layout.gradient.size() == segments.size());
  FERRY_ASSERT(layout.trained.size() == parameters.parameters().size());
  for (std::size_t i = 0; i < segments.size(); ++i) {
    if (layout.gradient[i]) {
      add_run(ParameterArray::kGradient, segments[i].offset, segments[i].elems, layout.homes[i]);
    }
  }
  for (std::size_t i = 0; i < layout.trained.size(); ++i) {
    const ParameterInfo& info = parameters.parameters()[i];
    if (!layout.trained[i]) continue;
    const Home home = home_of(info.offset);
    if (split_master()) add_run(ParameterArray::kWeightLow, info.offset, info.elems, home);
    add_run(ParameterArray::kFirstMoment, info.offset, info.elems, home);
    add_run(ParameterArray::kSecondMoment, info.offset, info.elems, home);
  }
}

/// Runs start on the alignment of weights, so that matrix products and 16-byte loads stay aligned at any home.
void ParameterArrays::add_run(ParameterArray array, std::int64_t offset, std::int64_t elems, Home home) {
  Array& target = array_of(array);
  std::int64_t& total = target.elems[static_cast<std::size_t>(home)];
  // Segments that touch in the flat space and live together stay together: the vocabulary is one matrix.
  const bool touches = !target.runs.empty() && target.runs.back().home == home &&
                       target.runs.back().offset + target.runs.back().elems == offset;
  const std::int64_t place = touches ? total : round_up(total, ParameterTable::kAlignElems);
  total = place + elems;
  if (touches) {
    target.runs.back().elems += elems;
  } else {
    target.runs.push_back({offset, elems, place, home});
  }
}

DType ParameterArrays::dtype_of(ParameterArray array) const {
  switch (array) {
    case ParameterArray::kWeight:
    case ParameterArray::kGradient: return dtype_;
    case ParameterArray::kWeightLow: return DType::kI16;
    case ParameterArray::kFirstMoment:
    case ParameterArray::kSecondMoment: break;
  }
  return moment_dtype(dtype_, state_);
}

std::size_t ParameterArrays::size_bytes(ParameterArray array, Home home) const {
  return static_cast<std::size_t>(array_of(array).elems[static_cast<std::size_t>(home)]) * size_of(dtype_of(array));
}

void ParameterArrays::bind(ParameterArray array, Home home, void* data) {
  array_of(array).data[static_cast<std::size_t>(home)] = data;
}

const ParameterArrays::Run* ParameterArrays::find(ParameterArray array, std::int64_t offset) const {
  const std::vector<Run>& runs = array_of(array).runs;
  const auto after = std::ranges::upper_bound(runs, offset, {}, &Run::offset);
  if (after == runs.begin()) return nullptr;
  const Run& run = *std::prev(after);
  return offset < run.offset + run.elems ? &run : nullptr;
}

Home ParameterArrays::home_of(std::int64_t offset) const {
  const Run* run = find(ParameterArray::kWeight, offset);
  FERRY_ASSERT(run != nullptr);
  return run->home;
}

TensorView ParameterArrays::at(ParameterArray array, std::int64_t offset, std::int64_t elems) const {
  const Run* run = find(array, offset);
  if (run == nullptr) return {};
  FERRY_ASSERT(offset + elems <= run->offset + run->elems);
  void* base = array_of(array).data[static_cast<std::size_t>(run->home)];
  FERRY_ASSERT(base != nullptr);
  const DType type = dtype_of(array);
  const std::int64_t place = run->place + offset - run->offset;
  return {static_cast<std::byte*>(base) + place * static_cast<std::int64_t>(size_of(type)), type, {elems}};
}

AdamwRange adamw_range(const ParameterArrays& arrays, const ParameterRange& part, const void* gradient) {
  const auto [offset, elems, decayed, parameter, element] = part;
  const TensorView low = arrays.at(ParameterArray::kWeightLow, offset, elems);
  return {.dtype = arrays.dtype(),
          .state = arrays.state(),
          .weight = arrays.weights_at(offset, elems).data,
          .weight_low = low ? low.as<std::int16_t>() : nullptr,
          .m = arrays.at(ParameterArray::kFirstMoment, offset, elems).data,
          .v = arrays.at(ParameterArray::kSecondMoment, offset, elems).data,
          .gradient = gradient,
          .n = elems,
          .parameter = parameter,
          .element = element};
}

void store_weights(std::span<const float> values, const TensorView& weight, const TensorView& weight_low) {
  FERRY_ASSERT(weight.elems() == static_cast<std::int64_t>(values.size()));
  if (weight.dtype == DType::kF32) {
    std::memcpy(weight.data, values.data(), values.size_bytes());
    return;
  }
  auto* high = weight.as<Bf16>();
  if (!weight_low) {
    for (std::size_t i = 0; i < values.size(); ++i) high[i] = to_bf16(values[i]);
    return;
  }
  auto* low = weight_low.as<std::int16_t>();
  for (std::size_t i = 0; i < values.size(); ++i) {
    const SplitF32 split = split_f32(values[i]);
    high[i] = split.high;
    low[i] = split.low;
  }
}

}  // namespace ferry
