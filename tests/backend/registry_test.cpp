// SPDX-License-Identifier: Apache-2.0
// Names of backends.
#include <vector>

#include "backend/backend.h"
#include "catch.h"
#include "thrown.h"

using namespace ferry;

TEST_CASE("an unknown backend is refused with the known names") {
  CHECK(thrown([] { create_backend("opencl", {}); }) ==
        "config: backend is 'opencl': expected one of auto, cpu, cpu:sync, cuda, trace:cpu, or check:A,B with two of "
        "these");
}

TEST_CASE("a check of anything but two plain backends is refused") {
  CHECK(thrown([] { create_backend("check:cpu", {}); }) ==
        "config: backend is 'check:cpu': check compares two backends: expected check:A,B, such as check:cuda,cpu");
  CHECK(thrown([] { create_backend("check:check:cpu,cpu,cpu", {}); }) ==
        "config: backend is 'check:check:cpu,cpu,cpu': check compares two plain backends, not another check: expected "
        "check:A,B");
  CHECK(thrown([] { create_backend("check:cpu,opencl", {}); }) ==
        "config: backend is 'opencl': expected one of auto, cpu, cpu:sync, cuda, trace:cpu, or check:A,B with two of "
        "these");
}

TEST_CASE("a trace takes the CPU backend and options that exist") {
  for (const char* name : {"trace:cuda", "trace:", "trace:cpu:sync", "trace:cpu2"}) {
    CHECK(thrown([&] { create_backend(name, {}); }) ==
          "config: backend is '" + std::string(name) +
              "': trace follows the CPU backend alone: expected trace:cpu, and options after a comma, such as "
              "trace:cpu,delay=1");
  }
  for (const char* option : {"", "drop=1", "slow", "slow=ops", "drop_wait2=1"}) {
    const std::string name = "trace:cpu,delay=1," + std::string(option);
    CHECK(thrown([&] { create_backend(name, {}); }) ==
          "config: backend is '" + name + "': '" + option +
              "' is no option of trace: expected drop_wait=N, delay=SEED or slow=copies");
  }
  for (const char* number : {"", "-1", "-0", "x", "1x", "99999999999999999999"}) {
    const std::string name = "trace:cpu,drop_wait=" + std::string(number);
    CHECK(thrown([&] { create_backend(name, {}); }) ==
          "config: backend is '" + name + "': '" + number + "' is not a number: expected 0 or more");
  }
  CHECK(create_backend("trace:cpu,slow=copies,drop_wait=0,delay=0", {.threads = 1})->capabilities().name == "trace");
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
