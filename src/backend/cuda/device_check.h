// SPDX-License-Identifier: Apache-2.0
// Whether a GPU can be used, decided on facts alone so that every refusal is tested without a GPU.
#pragma once

#include <optional>
#include <string>

namespace ferry::cuda {

/// What the driver says before any device is touched.
struct DriverFacts {
  int driver_version = 0;                      // newest CUDA of the driver, 13000 for 13.0; 0 = no driver
  int runtime_version = 0;                     // CUDA that ferry was built with
  bool too_old = false;                        // the runtime refuses the driver
  int n_devices = 0;                           // that this process sees
  std::string failure;                         // why the devices could not be counted; empty = they were
  std::optional<std::string> visible_devices;  // CUDA_VISIBLE_DEVICES
};

struct DeviceFacts {
  int device = 0;
  std::string name;  // "NVIDIA H200"
  int major = 0;     // compute capability
  int minor = 0;
};

/// "13.0"
std::string cuda_version_text(int version);

/// Throws Error{kDevice}: no driver, an old driver, no device; Error{kConfig}: `device` is not among those seen.
void check_driver(const DriverFacts& facts, int device);

/// Throws Error{kDevice} for a compute capability below 8.0 (the kernels and bf16 need it).
void check_device(const DeviceFacts& facts);

}  // namespace ferry::cuda
