// SPDX-License-Identifier: Apache-2.0
// Stands in for cuDNN's attention in a build without cuDNN: it takes no op.
#include "backend/cuda/cudnn_attention.h"
#include "core/error.h"

namespace ferry::cuda {

struct CudnnAttention::State {
  std::string version;
  std::string unavailable =
      "this ferry was built without cuDNN: install cuDNN and cudnn-frontend, then configure again (cmake says what is "
      "missing)";
};

CudnnAttention::CudnnAttention(std::size_t) : state_(std::make_unique<State>()) {}
CudnnAttention::~CudnnAttention() = default;

const std::string& CudnnAttention::version() const { return state_->version; }
const std::string& CudnnAttention::unavailable() const { return state_->unavailable; }

bool CudnnAttention::supported(const AttentionForward&) { return false; }
bool CudnnAttention::supported(const AttentionBackward&) { return false; }

std::size_t CudnnAttention::scratch_bytes(const AttentionForward&) { return 0; }
std::size_t CudnnAttention::scratch_bytes(const AttentionBackward&) { return 0; }

void CudnnAttention::forward(const AttentionForward&, Scratch, cudaStream_t) { FERRY_ASSERT(false); }
void CudnnAttention::backward(const AttentionBackward&, Scratch, cudaStream_t) { FERRY_ASSERT(false); }

}  // namespace ferry::cuda
