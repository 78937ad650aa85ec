// SPDX-License-Identifier: Apache-2.0
// A cuBLASLt handle of its own: nothing here depends on what the backend chose.
#include "backend/cuda/product_sweep.h"

#include <vector>

#include "backend/cuda/cublaslt_plan.h"
#include "backend/cuda/cuda_stream.h"
#include "core/error.h"

namespace ferry::cuda {

struct ProductSweep::State {
  State(cudaStream_t cuda_stream, const Matmul& op, Scratch work)
      : stream(cuda_stream), operands(op), scratch(work), descriptors(Product(op)) {
    FERRY_CUBLAS_CHECK(cublasLtCreate(handle.receive()));
    candidates = descriptors.candidates(handle.get(), scratch.size_bytes, kMaxCandidates);
  }

  const cudaStream_t stream;
  const Operands operands;
  const Scratch scratch;
  Owner<cublasLtHandle_t, cublasLtDestroy> handle;
  ProductDescriptors descriptors;
  std::vector<Candidate> candidates;
};

ProductSweep::ProductSweep(StreamRef stream, const Matmul& op, Scratch scratch) {
  const auto* const cuda_stream = dynamic_cast<const CudaStream*>(stream);
  if (cuda_stream == nullptr) return;
  use_device(cuda_stream->device());
  state_ = std::make_unique<State>(cuda_stream->get(), op, scratch);
}

ProductSweep::~ProductSweep() = default;

std::size_t ProductSweep::size() const { return state_ ? state_->candidates.size() : 0; }

bool ProductSweep::enqueue(std::size_t index) const {
  FERRY_ASSERT(index < size());
  const State& state = *state_;
  return state.descriptors.try_run(state.handle.get(), state.candidates[index].algo, state.operands, state.scratch,
                                   state.stream);
}

}  // namespace ferry::cuda
