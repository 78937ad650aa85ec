// SPDX-License-Identifier: Apache-2.0
// The refusals, each with what to try.
#include "backend/cuda/device_check.h"

#include "core/error.h"

namespace ferry::cuda {
namespace {

constexpr int kMinMajor = 8;

std::string visible_text(const DriverFacts& facts) {
  return facts.visible_devices ? fmt::format(" (CUDA_VISIBLE_DEVICES is '{}')", *facts.visible_devices) : "";
}

}  // namespace

std::string cuda_version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

void check_driver(const DriverFacts& facts, int device) {
  FERRY_CHECK(device >= 0, kConfig, "device is {}: expected 0 or more", device);
  FERRY_CHECK(facts.driver_version > 0, kDevice,
              "no NVIDIA driver is loaded: install one (nvidia-smi must list the GPU), or use --backend cpu");
  FERRY_CHECK(!facts.too_old, kDevice,
              "the NVIDIA driver supports CUDA {}, this ferry is built with {}: update the driver, build with an older "
              "CUDA toolkit, or use --backend cpu",
              cuda_version_text(facts.driver_version), cuda_version_text(facts.runtime_version));
  FERRY_CHECK(facts.failure.empty(), kDevice,
              "the NVIDIA driver does not answer ({}): try nvidia-smi, look at the kernel log, or use --backend cpu",
              facts.failure);
  FERRY_CHECK(facts.n_devices > 0, kDevice, "the NVIDIA driver shows no GPU{}: see nvidia-smi, or use --backend cpu",
              visible_text(facts));
  FERRY_CHECK(device < facts.n_devices, kConfig, "device is {}: expected {}{}", device,
              facts.n_devices == 1 ? "0, the only GPU that is visible" : fmt::format("0 to {}", facts.n_devices - 1),
              visible_text(facts));
}

void check_device(const DeviceFacts& facts) {
  FERRY_CHECK(facts.major >= kMinMajor, kDevice,
              "device {} ({}) has compute capability {}.{}: expected {}.0 or more; choose another GPU with device or "
              "CUDA_VISIBLE_DEVICES, or use --backend cpu",
              facts.device, facts.name, facts.major, facts.minor, kMinMajor);
}

}  // namespace ferry::cuda
