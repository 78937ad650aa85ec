// SPDX-License-Identifier: Apache-2.0
#include "backend/device_peak.h"

#include "catch.h"

namespace ferry {
namespace {

double tera(std::string_view description) { return dense_bf16_peak(description).value_or(0) / 1e12; }

}  // namespace

TEST_CASE("the peak follows the GPU's name, the longest that fits") {
  CHECK(tera("NVIDIA H200, compute capability 9.0, 139.8 GiB") == 989);
  CHECK(tera("NVIDIA H200 NVL, compute capability 9.0") == 835);
  CHECK(tera("NVIDIA H100 80GB HBM3") == 989);
  CHECK(tera("NVIDIA H100 PCIe") == 756);
  CHECK(tera("NVIDIA GH200 480GB") == 989);
  CHECK(tera("NVIDIA A100-SXM4-80GB, compute capability 8.0") == 312);
  CHECK(tera("NVIDIA A10, compute capability 8.6") == 125);
  CHECK(tera("NVIDIA L40S") == 362);
  CHECK(tera("NVIDIA GeForce RTX 4090") == 165);
}

TEST_CASE("a device that is not in the table has no peak") {
  for (const char* name : {"Intel Xeon, avx512, 2 threads", "NVIDIA A10G", "NVIDIA GeForce GTX 1080",
                           "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", ""}) {
    INFO(name);
    CHECK_FALSE(dense_bf16_peak(name));
  }
}

}  // namespace ferry
