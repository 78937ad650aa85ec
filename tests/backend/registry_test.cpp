// SPDX-License-Identifier: Apache-2.0
// Names of backends.
#include <vector>

#include "backend/backend.h"
#include "catch.h"
#include "thrown.h"

using namespace ferry;

TEST_CASE("an unknown backend is refused with the known names") {
  CHECK(thrown([] { create_backend("opencl", {}); }) ==
        "config: backend is 'opencl': expected one of auto, cpu, cpu:sync, cuda, or check:A,B with two of these");
}

TEST_CASE("a check of anything but two plain backends is refused") {
  CHECK(thrown([] { create_backend("check:cpu", {}); }) ==
        "config: backend is 'check:cpu': check compares two backends: expected check:A,B, such as check:cuda,cpu");
  CHECK(thrown([] { create_backend("check:check:cpu,cpu,cpu", {}); }) ==
        "config: backend is 'check:check:cpu,cpu,cpu': check compares two plain backends, not another check: expected "
        "check:A,B");
  CHECK(thrown([] { create_backend("check:cpu,opencl", {}); }) ==
        "config: backend is 'opencl': expected one of auto, cpu, cpu:sync, cuda, or check:A,B with two of these");
}

TEST_CASE("a negative number of threads is refused") {
  CHECK(thrown([] { create_backend("cpu", {.threads = -1}); }) ==
        "config: threads is -1: expected 1 or more, or 0 for all that are available");
}

TEST_CASE("auto always finds a backend") { CHECK(create_backend("auto", {.threads = 1}) != nullptr); }

TEST_CASE("the CPU backends run a real op") {
  for (const char* name : {"cpu", "cpu:sync", "check:cpu,cpu"}) {
    auto backend = create_backend(name, {.threads = 2});
    auto stream = backend->create_stream("compute");
    std::vector<float> data(1001, 1.0F);
    backend->enqueue(stream.get(), Fill{TensorView(data.data(), DType::kF32, {1000})});
    backend->sync(stream.get());
    CHECK(data[0] == 0.0F);
    CHECK(data[999] == 0.0F);
    CHECK(data[1000] == 1.0F);
  }
}
