// SPDX-License-Identifier: Apache-2.0
// How far an op's output may lie from the reference: the one table, by backend, op and the output's dtype.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

#include "core/dtype.h"

namespace ferry::test {

/// |got - want| <= relative * |want| + of_largest * max |want of the tensor|
struct Tolerance {
  const char* backend;
  const char* op;  // ops whose names begin so; "" = all others
  DType dtype;
  double relative;
  double of_largest;
};

inline constexpr Tolerance kTolerances[] = {
    // f32 arithmetic in another order: 2^-24 times a few, sums of up to some hundred terms.
    {"cpu", "", DType::kF32, 2e-6, 2e-6},
    // One rounding to nearest: the f32 result may fall on the other side of a tie, one step of 2^-8.
    {"cpu", "", DType::kBf16, 0x1p-7, 1e-5},
    {"cpu", "", DType::kI32, 0, 0},

    // Tensor cores add 16 products at a time and cut off what lies below the last place of the sum, 2^-23 of it: always
    // toward zero, so a sum of 1030 terms, 65 steps, may lie 65 * 2^-23 = 8e-6 of its largest partial sum off.
    {"cuda", "matmul", DType::kF32, 2e-6, 1e-5},
    // A log-sum-exp from exponentials and logarithms to base 2, each within 2^-22, of scores times log2(e), rounded.
    {"cuda", "attention", DType::kF32, 2e-6, 4e-6},
    // Fused kernels and cuDNN round probabilities and the gradients of scores to bf16 before they multiply them, 2^-9
    // of
    // each; an output is a sum of them, up to eight times smaller than the sum of their sizes where they cancel.
    {"cuda", "attention", DType::kBf16, 0x1p-6, 0x1p-6},
    // As on the CPU: exp, log and reciprocals are within a few 2^-24 here too.
    {"cuda", "", DType::kF32, 2e-6, 2e-6},
    {"cuda", "", DType::kBf16, 0x1p-7, 1e-5},
    {"cuda", "", DType::kI32, 0, 0},
};

/// The first entry that fits; a runner named "cpu/avx2" belongs to "cpu".
inline const Tolerance& tolerance(const std::string& backend, const std::string& op, DType dtype) {
  for (const Tolerance& entry : kTolerances) {
    const bool is_for_op = op.compare(0, std::string_view(entry.op).size(), entry.op) == 0;
    if (backend.substr(0, backend.find('/')) == entry.backend && is_for_op && dtype == entry.dtype) return entry;
  }
  throw std::logic_error("no tolerance for " + backend);
}

}  // namespace ferry::test
