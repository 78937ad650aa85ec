// SPDX-License-Identifier: Apache-2.0
// Copying stored tensors, or pieces of them, into memory of another element type.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "core/dtype.h"
#include "io/safetensors.h"

namespace ferry {

/// What the caller expects, and which elements go where.
struct TensorRead {
  std::span<const std::int64_t> shape;  // must equal the stored shape
  DType dtype = DType::kF32;            // of the destination
  void* destination = nullptr;          // n_elems elements
  std::int64_t first_elem = 0;          // in row-major order
  std::int64_t n_elems = 0;
};

/// Exact where the dtypes agree and for F16 and BF16 into f32; into bf16, F32 and F16 round to nearest even.
/// `origin` (the file) begins the messages. Throws Error{kShape} (shape, range) or Error{kDType} (no such conversion).
void read_tensor(const std::string& origin, const SafetensorsEntry& entry, const TensorRead& read);

}  // namespace ferry
