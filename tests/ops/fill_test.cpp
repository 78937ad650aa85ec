// SPDX-License-Identifier: Apache-2.0
// Fill sets the bytes of its tensor and no others.
#include <algorithm>
#include <array>
#include <cmath>

#include "catch.h"
#include "ops/op_runners.h"
#include "ops/test_tensor.h"

namespace ferry::test {

TEST_CASE("fill sets every byte of any dtype, and none beside it", FERRY_OP_TAGS) {
  constexpr std::uint8_t kBefore = 0x11;
  constexpr std::size_t kGuard = 64;
  for (const OpRunner& runner : op_runners()) {
    for (const DType dtype : {DType::kF32, DType::kBf16, DType::kI32, DType::kI16}) {
      for (const std::int64_t n : {1, 17, 70001}) {
        for (const std::uint8_t byte : std::to_array<std::uint8_t>({0x00, 0x5a, 0xff})) {
          INFO(runner.name << ", " << to_string(dtype) << ", n " << n << ", byte " << int{byte});
          const std::size_t size_bytes = static_cast<std::size_t>(n) * size_of(dtype);
          std::vector<std::uint8_t> memory(size_bytes + 2 * kGuard, kBefore);
          std::vector<std::uint8_t> want = memory;
          std::fill_n(want.begin() + kGuard, size_bytes, byte);
          runner.run(Fill{.x = TensorView(memory.data() + kGuard, dtype, {n}), .byte = byte});
          CHECK((memory == want));
        }
      }
    }
  }
}

TEST_CASE("a fill with the NaN byte gives NaN, one without a byte zeros", FERRY_OP_TAGS) {
  for (const OpRunner& runner : op_runners()) {
    for (const DType dtype : {DType::kF32, DType::kBf16}) {
      INFO(runner.name << ", " << to_string(dtype));
      const TestTensor x = random_tensor(dtype, {3, 67}, "x");
      runner.run(Fill{.x = x.view(), .byte = Fill::kNaNByte});
      const std::vector<double> poisoned = x.values();
      CHECK(std::all_of(poisoned.begin(), poisoned.end(), [](double value) { return std::isnan(value); }));
      runner.run(Fill{.x = x.view()});
      CHECK(x.bits() == std::vector<std::uint32_t>(3 * 67, 0));
    }
  }
}

}  // namespace ferry::test
