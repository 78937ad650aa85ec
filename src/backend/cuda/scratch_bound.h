// SPDX-License-Identifier: Apache-2.0
// What the CUDA backend's ops need at most and what serves them, known without a GPU and in a build without CUDA.
#pragma once

#include "backend/backend.h"

namespace ferry::cuda {

/// Never below what the backend asks for. Equal to it but for cuDNN's attention, whose workspace only cuDNN knows.
class ScratchBound final : public ScratchSizes {
 public:
  explicit ScratchBound(AttentionChoice attention) : attention_(attention) {}

  std::size_t scratch_bytes(const Op& op) const override;
  bool is_exact(const Op& op) const override;
  std::string what_serves(const Op& op) const override;

 private:
  const AttentionChoice attention_;
};

}  // namespace ferry::cuda
