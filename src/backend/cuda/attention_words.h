// SPDX-License-Identifier: Apache-2.0
// Words about what serves attention, for a log and for a plan, with and without a GPU.
#pragma once

#include <fmt/core.h>

#include <string>

#include "backend/backend.h"

namespace ferry::cuda {

inline constexpr const char* kFusedOps = "bf16 heads of 64, 80, 96 or 128 elements";
inline constexpr const char* kPlainKernels = "plain kernels, which are many times slower";

/// "bf16 heads of 72 elements"
template <class AttentionOp>
std::string heads_of(const AttentionOp& op) {
  return fmt::format("{} heads of {} elements", to_string(op.q.dtype), op.q.shape[3]);
}

template <class AttentionOp>
std::string by_fused(const AttentionOp& op) {
  return fmt::format("ferry's fused kernels, which take {}", heads_of(op));
}

template <class AttentionOp>
std::string by_cudnn(const AttentionOp& op, AttentionChoice choice, const std::string& cudnn) {
  if (choice == AttentionChoice::kCudnn) return cudnn + ", as attention = cudnn asks";
  return fmt::format("{}: ferry's fused kernels take {}, here are {}", cudnn, kFusedOps, heads_of(op));
}

/// What keeps an op from the fast kernels, but for what cuDNN alone knows: then empty.
template <class AttentionOp>
std::string by_plain_since(const AttentionOp& op, AttentionChoice choice) {
  if (op.q.dtype != DType::kBf16) return "the faster ones take bf16 alone";
  if (choice != AttentionChoice::kFerry) return "";
  return fmt::format("attention = ferry takes {} in rows of multiples of 16 bytes", kFusedOps);
}

}  // namespace ferry::cuda
