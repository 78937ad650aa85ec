// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/device_check.h"

#include <cstdlib>

#include "backend/cuda/cuda_backend.h"
#include "catch.h"
#include "thrown.h"

using namespace ferry;
using namespace ferry::cuda;

namespace {

DriverFacts good_driver() {
  DriverFacts facts;
  facts.driver_version = 13000;
  facts.runtime_version = 13000;
  facts.n_devices = 2;
  return facts;
}

std::string refusal(const DriverFacts& facts, int device = 0) {
  return thrown([&] { check_driver(facts, device); });
}

/// Sets a variable of the environment as long as it lives.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Variable() { unsetenv(name_); }

 private:
  const char* name_;
};

}  // namespace

TEST_CASE("a driver that shows devices is taken, newer and older minor versions too") {
  DriverFacts facts = good_driver();
  CHECK(refusal(facts).empty());
  CHECK(refusal(facts, 1).empty());
  facts.driver_version = 13020;
  CHECK(refusal(facts).empty());
  facts.driver_version = 12080;
  CHECK(refusal(facts).empty());  // the runtime has the last word: too_old
}

TEST_CASE("no driver is refused") {
  DriverFacts facts = good_driver();
  facts.driver_version = 0;
  facts.too_old = true;  // the runtime says so of a missing one too
  facts.n_devices = 0;
  CHECK(refusal(facts) ==
        "device: no NVIDIA driver is loaded: install one (nvidia-smi must list the GPU), or use --backend cpu");
}

TEST_CASE("a driver that is too old is refused with both versions") {
  DriverFacts facts = good_driver();
  facts.driver_version = 11040;
  facts.too_old = true;
  facts.failure = "cudaErrorInsufficientDriver";
  CHECK(refusal(facts) ==
        "device: the NVIDIA driver supports CUDA 11.4, this ferry is built with 13.0: update the driver, build with an "
        "older CUDA toolkit, or use --backend cpu");
}

TEST_CASE("a driver that does not answer is refused") {
  DriverFacts facts = good_driver();
  facts.failure = "cudaErrorInitializationError";
  CHECK(refusal(facts) ==
        "device: the NVIDIA driver does not answer (cudaErrorInitializationError): try nvidia-smi, look at the kernel "
        "log, or use --backend cpu");
}

TEST_CASE("a driver without a GPU is refused, CUDA_VISIBLE_DEVICES is named where it is set") {
  DriverFacts facts = good_driver();
  facts.n_devices = 0;
  CHECK(refusal(facts) == "device: the NVIDIA driver shows no GPU: see nvidia-smi, or use --backend cpu");
  facts.visible_devices.emplace();
  CHECK(refusal(facts) ==
        "device: the NVIDIA driver shows no GPU (CUDA_VISIBLE_DEVICES is ''): see nvidia-smi, or use "
        "--backend cpu");
}

TEST_CASE("a device that is not visible is refused with those that are") {
  DriverFacts facts = good_driver();
  CHECK(refusal(facts, 2) == "config: device is 2: expected 0 to 1");
  facts.n_devices = 1;
  facts.visible_devices.emplace("3");
  CHECK(refusal(facts, 3) ==
        "config: device is 3: expected 0, the only GPU that is visible (CUDA_VISIBLE_DEVICES is '3')");
}

TEST_CASE("a negative device is refused") {
  CHECK(refusal(good_driver(), -1) == "config: device is -1: expected 0 or more");
}

TEST_CASE("compute capability 8.0 and above is taken, 7.5 refused") {
  CHECK(thrown([] { check_device({0, "NVIDIA A100", 8, 0}); }).empty());
  CHECK(thrown([] { check_device({0, "NVIDIA H200", 9, 0}); }).empty());
  CHECK(
      thrown([] {
        check_device({1, "Tesla T4", 7, 5});
      }) ==
      "device: device 1 (Tesla T4) has compute capability 7.5: expected 8.0 or more; choose another GPU with device or "
      "CUDA_VISIBLE_DEVICES, or use --backend cpu");
}

TEST_CASE("the environment switches pinning and launches") {
  CHECK(cuda_options({}).pin_memory);
  CHECK(!cuda_options({}).sync_launches);
  const Variable pin("FERRY_PIN_MEMORY", "0"), sync("FERRY_SYNC_LAUNCHES", "1"), file("FERRY_MATMUL_CACHE", "/x/y");
  const CudaOptions options = cuda_options({.threads = 3, .device = 1, .attention = AttentionChoice::kFerry});
  CHECK(!options.pin_memory);
  CHECK(options.sync_launches);
  CHECK(options.choices_file == "/x/y");
  CHECK(options.device == 1);
  CHECK(options.threads == 3);
  CHECK(options.attention == AttentionChoice::kFerry);
}

TEST_CASE("another value of a switch in the environment is refused") {
  const Variable sync("FERRY_SYNC_LAUNCHES", "yes");
  CHECK(thrown([] { cuda_options({}); }) == "config: FERRY_SYNC_LAUNCHES is 'yes': expected 0 or 1");
}

TEST_CASE("a negative number of threads is refused by the CUDA backend too") {
  CHECK(thrown([] { cuda_options({.threads = -1}); }) ==
        "config: threads is -1: expected 1 or more, or 0 for all that are available");
}
