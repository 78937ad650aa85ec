// SPDX-License-Identifier: Apache-2.0
// Tests that need a GPU call this first: without one they are reported as skipped, never as passed.
#pragma once

#include <cstdio>
#include <cstdlib>

#include "backend/cuda/cuda_factory.h"

namespace ferry {

/// Ends the test program where there is no GPU: ctest knows the text and reports the test as skipped. With
/// FERRY_TESTS_NEED_GPU=1 that is a failure. Not an exit code: Catch2's own are numbers of failures, up to 255.
inline void gpu_or_skip() {
  if (cuda_device_count() > 0) return;
  const char* needed = std::getenv("FERRY_TESTS_NEED_GPU");
  const bool must_run = needed != nullptr && *needed == '1';
  std::puts(must_run ? "there is no GPU, but FERRY_TESTS_NEED_GPU=1" : "FERRY_GPU_TEST_SKIPPED: there is no GPU");
  std::fflush(stdout);
  std::_Exit(must_run ? 1 : 77);
}

}  // namespace ferry
