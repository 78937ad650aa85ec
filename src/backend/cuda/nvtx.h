// SPDX-License-Identifier: Apache-2.0
// Names for profilers: a range per op, a name per stream. Empty where the toolkit has no NVTX headers.
#pragma once

#include <cuda_runtime_api.h>

#if __has_include(<nvtx3/nvToolsExtCudaRt.h>)
#include <nvtx3/nvToolsExt.h>
#include <nvtx3/nvToolsExtCudaRt.h>

namespace ferry::cuda {

/// Lasts as long as the object, on the calling thread.
class NvtxRange {
 public:
  explicit NvtxRange(const char* name) { nvtxRangePushA(name); }
  ~NvtxRange() { nvtxRangePop(); }
  NvtxRange(const NvtxRange&) = delete;
  NvtxRange& operator=(const NvtxRange&) = delete;
};

inline void name_stream(cudaStream_t stream, const char* name) { nvtxNameCudaStreamA(stream, name); }

}  // namespace ferry::cuda

#else

namespace ferry::cuda {

class NvtxRange {
 public:
  explicit NvtxRange(const char*) {}
  ~NvtxRange() {}
};

inline void name_stream(cudaStream_t, const char*) {}

}  // namespace ferry::cuda

#endif
