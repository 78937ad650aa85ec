// SPDX-License-Identifier: Apache-2.0
// Arrays on the device for tests, with copies that block.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "backend/backend.h"

namespace ferry::test {

/// n elements on the device, starting `skew` elements after an aligned address.
template <class T>
class DeviceArray {
 public:
  DeviceArray(Backend& backend, Stream& stream, const std::vector<T>& values, std::size_t skew = 0)
      : backend_(backend),
        stream_(stream),
        n_(values.size()),
        skew_(skew),
        device_(backend.allocate_device((n_ + skew) * sizeof(T), "test array")),
        host_(backend.allocate_host(n_ * sizeof(T), "test array")) {
    std::memcpy(host_.data(), values.data(), n_ * sizeof(T));
    backend.copy(&stream, data(), host_.data(), n_ * sizeof(T), CopyDirection::kHostToDevice);
    backend.sync(&stream);
  }

  T* data() const { return static_cast<T*>(device_.data()) + skew_; }

  std::vector<T> read() const {
    backend_.copy(&stream_, host_.data(), data(), n_ * sizeof(T), CopyDirection::kDeviceToHost);
    backend_.sync(&stream_);
    std::vector<T> values(n_);
    std::memcpy(values.data(), host_.data(), n_ * sizeof(T));
    return values;
  }

 private:
  Backend& backend_;
  Stream& stream_;
  std::size_t n_;
  std::size_t skew_;
  Buffer device_;
  Buffer host_;
};

}  // namespace ferry::test
