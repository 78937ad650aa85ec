// SPDX-License-Identifier: Apache-2.0
// These tests break the GPU for their process: each must run in one of its own.
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/device_array.h"
#include "catch.h"
#include "gpu_or_skip.h"
#include "thrown.h"

using namespace ferry;
using namespace ferry::cuda;
using ferry::test::DeviceArray;

namespace {

/// A gather whose id lies terabytes beyond its table.
struct WildGather {
  explicit WildGather(bool sync_launches) {
    gpu_or_skip();
    CudaOptions options;
    options.sync_launches = sync_launches;
    backend = create_cuda_backend(options);
    stream = backend->create_stream("stream");
    ids = std::make_unique<DeviceArray<std::int32_t>>(*backend, *stream, std::vector<std::int32_t>{1 << 30});
    table = std::make_unique<DeviceArray<float>>(*backend, *stream, std::vector<float>(2048));
    y = std::make_unique<DeviceArray<float>>(*backend, *stream, std::vector<float>(1024));
  }
  void enqueue() const {
    backend->enqueue(stream.get(), EmbeddingForward{.ids = TensorView(ids->data(), DType::kI32, {1}),
                                                    .table = TensorView(table->data(), DType::kF32, {2, 1024}),
                                                    .y = TensorView(y->data(), DType::kF32, {1, 1024})});
  }

  std::unique_ptr<Backend> backend;
  std::unique_ptr<Stream> stream;
  std::unique_ptr<DeviceArray<std::int32_t>> ids;
  std::unique_ptr<DeviceArray<float>> table;
  std::unique_ptr<DeviceArray<float>> y;
};

}  // namespace

TEST_CASE("after an op failed on the GPU every call throws the first error", "[gpu]") {
  const WildGather wild(false);
  Backend& backend = *wild.backend;
  const StreamRef stream = wild.stream.get();
  const auto event = backend.create_event();
  backend.record(event.get(), stream);
  wild.enqueue();
  const std::string expected = thrown([&] { backend.sync(stream); });
  CHECK(expected.find("device: cudaStreamSynchronize: cudaErrorIllegalAddress (") == 0);
  CHECK(expected.find("FERRY_SYNC_LAUNCHES=1") != std::string::npos);
  CHECK(thrown([&] { wild.enqueue(); }) == expected);
  CHECK(thrown([&] { backend.record(event.get(), stream); }) == expected);
  CHECK(thrown([&] { backend.wait(stream, event.get()); }) == expected);
  CHECK(thrown([&] { backend.query(event.get()); }) == expected);
  CHECK(thrown([&] { backend.sync(event.get()); }) == expected);
  CHECK(thrown([&] { backend.sync(stream); }) == expected);
  CHECK(thrown([&] { backend.allocate_device(1000, "more"); }) == expected);
  CHECK(thrown([&] { backend.copy(stream, wild.y->data(), wild.table->data(), 4, CopyDirection::kDeviceToDevice); }) ==
        expected);
}

TEST_CASE("with synchronous launches the op that fails is named", "[gpu]") {
  const WildGather wild(true);
  const std::string message = thrown([&] { wild.enqueue(); });
  CHECK(message.find("device: embedding_forward ids i32 (1) table f32 (2, 1024) y f32 (1, 1024): "
                     "cudaErrorIllegalAddress (") == 0);
  CHECK(thrown([&] { wild.backend->sync(wild.stream.get()); }) == message);
}
