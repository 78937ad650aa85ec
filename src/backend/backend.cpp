// SPDX-License-Identifier: Apache-2.0
// Owners of memory and the count of allocated bytes, common to all backends.
#include "backend/backend.h"

#include <utility>

#include "core/error.h"
#include "core/human_units.h"

namespace ferry {

Buffer::Buffer(Backend& backend, Place place, void* data, std::size_t size_bytes)
    : backend_(&backend), place_(place), data_(data), size_bytes_(size_bytes) {}

Buffer::Buffer(Buffer&& other) noexcept
    : backend_(std::exchange(other.backend_, nullptr)),
      place_(other.place_),
      data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  Buffer taken(std::move(other));
  std::swap(backend_, taken.backend_);
  std::swap(place_, taken.place_);
  std::swap(data_, taken.data_);
  std::swap(size_bytes_, taken.size_bytes_);
  return *this;
}

Buffer::~Buffer() {
  if (data_ == nullptr) return;
  backend_->free(place_, data_, size_bytes_);
  (place_ == Place::kDevice ? backend_->device_bytes_ : backend_->host_bytes_) -= size_bytes_;
}

Buffer Backend::allocate_device(std::size_t size_bytes, const std::string& purpose) {
  return allocate_buffer(Buffer::Place::kDevice, size_bytes, purpose);
}

Buffer Backend::allocate_host(std::size_t size_bytes, const std::string& purpose) {
  return allocate_buffer(Buffer::Place::kHost, size_bytes, purpose);
}

Buffer Backend::allocate_buffer(Buffer::Place place, std::size_t size_bytes, const std::string& purpose) {
  if (size_bytes == 0) return {};
  const bool device = place == Buffer::Place::kDevice;
  auto& total_bytes = device ? device_bytes_ : host_bytes_;
  void* data = allocate(place, size_bytes);
  FERRY_CHECK(data != nullptr, kMemory, "{} memory for {}: {} are not available{}, {} are in use already: {}",
              device ? "device" : "host", purpose, human_bytes(size_bytes), available(place), human_bytes(total_bytes),
              device ? "lower batch_size or seq_len" : "end other programs, or choose a smaller model");
  name_memory(data, purpose);
  total_bytes += size_bytes;
  return {*this, place, data, size_bytes};
}

}  // namespace ferry
