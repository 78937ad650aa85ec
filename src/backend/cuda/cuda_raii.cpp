// SPDX-License-Identifier: Apache-2.0
// What to try after each kind of CUDA error, and the current device of a thread.
#include "backend/cuda/cuda_raii.h"

#include <string_view>

#include "core/error.h"

namespace ferry::cuda {
namespace {

const char* what_to_try(cudaError_t status) {
  switch (status) {
    case cudaErrorMemoryAllocation:
      return "the GPU's memory is full: end other programs that use it (nvidia-smi lists them), or lower batch_size";
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidDeviceFunction:
    case cudaErrorUnsupportedPtxVersion:
      return "this ferry holds no code for this GPU: build it with its architecture in CMAKE_CUDA_ARCHITECTURES";
    case cudaErrorInsufficientDriver: return "update the NVIDIA driver";
    case cudaErrorDevicesUnavailable:
      return "another program holds the GPU alone: end it, or choose another with device or CUDA_VISIBLE_DEVICES";
    case cudaErrorECCUncorrectable:
    case cudaErrorHardwareStackError:
    case cudaErrorNvlinkUncorrectable: return "the GPU reports a hardware fault: look at nvidia-smi and the kernel log";
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorIllegalInstruction:
    case cudaErrorLaunchFailure:
    case cudaErrorAssert:
      return "an earlier op failed while it ran, the GPU takes no more work from this process: set "
             "FERRY_SYNC_LAUNCHES=1 to learn which";
    default: return "set FERRY_SYNC_LAUNCHES=1 to learn which op fails; nvidia-smi and the kernel log may say more";
  }
}

thread_local int current_device = -1;  // as this file last set it

}  // namespace

void throw_cuda_error(cudaError_t status, const char* call) {
  cudaGetLastError();
  const std::string_view text(call);
  const std::string_view name = text.substr(0, text.find('('));
  ferry::detail::throw_error(ErrorKind::kDevice, fmt::format("{}: {} ({}): {}", name, cudaGetErrorName(status),
                                                             cudaGetErrorString(status), what_to_try(status)));
}

void use_device(int device) {
  if (current_device == device) return;
  FERRY_CUDA_CHECK(cudaSetDevice(device));
  current_device = device;
}

bool try_use_device(int device) noexcept {
  if (current_device == device) return true;
  if (cudaSetDevice(device) != cudaSuccess) return false;
  current_device = device;
  return true;
}

}  // namespace ferry::cuda
