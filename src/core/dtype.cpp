// SPDX-License-Identifier: Apache-2.0
// Names of element types.
#include "core/dtype.h"

#include "core/error.h"

namespace ferry {

const char* to_string(DType dtype) {
  switch (dtype) {
    case DType::kF32: return "f32";
    case DType::kBf16: return "bf16";
    case DType::kI32: return "i32";
    case DType::kI16: return "i16";
  }
  return "unknown";
}

DType parse_dtype(std::string_view text) {
  if (text == "f32") return DType::kF32;
  if (text == "bf16") return DType::kBf16;
  detail::throw_error(ErrorKind::kConfig, fmt::format("dtype is '{}': expected f32 or bf16", text));
}

}  // namespace ferry
