// SPDX-License-Identifier: Apache-2.0
// An image of all host ranges, NaN in between, travels to the device before an op and back after it.
#include "ops/backend_runner.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace ferry::test {
namespace {

constexpr std::size_t kGuardBytes = 256;   // around each range
constexpr auto kFiller = std::byte{0xff};  // NaN in f32 and bf16

std::size_t round_up(std::size_t bytes) { return (bytes + kGuardBytes - 1) / kGuardBytes * kGuardBytes; }

bool is_filler(const std::byte* begin, const std::byte* end) {
  return std::all_of(begin, end, [](std::byte byte) { return byte == kFiller; });
}

/// Host memory that views of an op cover without a break.
struct HostRange {
  std::byte* begin = nullptr;
  std::byte* end = nullptr;
  bool is_written = false;
  std::size_t offset = 0;  // in the image

  std::size_t size_bytes() const { return static_cast<std::size_t>(end - begin); }
};

/// Ranges of all tensors of the op, in ascending order; those that overlap are one.
std::vector<HostRange> host_ranges(const Op& op) {
  std::vector<HostRange> all;
  const auto add = [&all](Access access, const char*, const TensorView& view) {
    if (!view || view.elems() == 0) return;
    auto* const begin = static_cast<std::byte*>(view.data);
    all.push_back({begin, begin + view.span_bytes(), access != Access::kRead});
  };
  std::visit([&add](const auto& args) { args.visit(add); }, op);
  std::sort(all.begin(), all.end(), [](const HostRange& a, const HostRange& b) { return a.begin < b.begin; });
  std::vector<HostRange> merged;
  for (const HostRange& range : all) {
    if (merged.empty() || range.begin >= merged.back().end) {
      merged.push_back(range);
      continue;
    }
    merged.back().end = std::max(merged.back().end, range.end);
    merged.back().is_written = merged.back().is_written || range.is_written;
  }
  return merged;
}

/// Gives each range its place; returns the bytes of the image.
std::size_t lay_out(std::vector<HostRange>& ranges) {
  std::size_t size_bytes = 0;
  for (HostRange& range : ranges) {
    range.offset = size_bytes + kGuardBytes + reinterpret_cast<std::uintptr_t>(range.begin) % kGuardBytes;
    size_bytes = round_up(range.offset + range.size_bytes());
  }
  return size_bytes + kGuardBytes;
}

/// The op with its tensors in the image at `dev_image`. The visited views are the struct's own members.
Op on_device(Op op, const std::vector<HostRange>& ranges, std::byte* dev_image) {
  const auto move = [&](Access, const char*, const TensorView& view) {
    for (const HostRange& range : ranges) {
      auto* const data = static_cast<std::byte*>(view.data);
      if (data < range.begin || data >= range.end) continue;
      const_cast<TensorView&>(view).data = dev_image + range.offset + (data - range.begin);
      return;
    }
  };
  std::visit([&move](auto& args) { std::as_const(args).visit(move); }, op);
  return op;
}

class BackendRunner {
 public:
  explicit BackendRunner(std::unique_ptr<Backend> backend)
      : backend_(std::move(backend)), stream_(backend_->create_stream("test")) {}

  void run(const Op& op) {
    std::vector<HostRange> ranges = host_ranges(op);
    const std::size_t image_bytes = lay_out(ranges);
    const std::size_t scratch_bytes = backend_->scratch_bytes(op);
    reserve(image_bytes, scratch_bytes + kGuardBytes);

    std::memset(image(), static_cast<int>(kFiller), image_bytes);
    for (const HostRange& range : ranges) std::memcpy(image() + range.offset, range.begin, range.size_bytes());
    copy(dev_image_.data(), image(), image_bytes, CopyDirection::kHostToDevice);
    copy(dev_scratch_.data(), filler_.data(), scratch_bytes + kGuardBytes, CopyDirection::kHostToDevice);
    const Op moved = on_device(op, ranges, static_cast<std::byte*>(dev_image_.data()));
    backend_->enqueue(stream_.get(), moved, {scratch_bytes > 0 ? dev_scratch_.data() : nullptr, scratch_bytes});
    copy(image(), dev_image_.data(), image_bytes, CopyDirection::kDeviceToHost);
    copy(scratch_end_.data(), static_cast<std::byte*>(dev_scratch_.data()) + scratch_bytes, kGuardBytes,
         CopyDirection::kDeviceToHost);
    backend_->sync(stream_.get());

    check_surroundings(op, ranges, image_bytes);
    for (const HostRange& range : ranges) {
      if (range.is_written) std::memcpy(range.begin, image() + range.offset, range.size_bytes());
    }
  }

 private:
  std::byte* image() { return static_cast<std::byte*>(image_.data()); }

  void copy(void* destination, const void* source, std::size_t size_bytes, CopyDirection direction) {
    backend_->copy(stream_.get(), destination, source, size_bytes, direction);
  }

  void reserve(std::size_t image_bytes, std::size_t scratch_bytes) {
    if (image_.size_bytes() < image_bytes) {
      image_ = backend_->allocate_host(image_bytes, "test image");
      dev_image_ = backend_->allocate_device(image_bytes, "test image");
    }
    if (filler_.size_bytes() < scratch_bytes) {
      filler_ = backend_->allocate_host(scratch_bytes, "test filler");
      std::memset(filler_.data(), static_cast<int>(kFiller), scratch_bytes);
      dev_scratch_ = backend_->allocate_device(scratch_bytes, "test scratch");
      scratch_end_ = backend_->allocate_host(kGuardBytes, "test scratch");
    }
  }

  void check_surroundings(const Op& op, const std::vector<HostRange>& ranges, std::size_t image_bytes) {
    const std::byte* gap = image();
    for (const HostRange& range : ranges) {
      const std::byte* const begin = image() + range.offset;
      if (!is_filler(gap, begin)) fail(op, "changed memory beside its tensors");
      if (!range.is_written && std::memcmp(begin, range.begin, range.size_bytes()) != 0) {
        fail(op, "changed a tensor that it may only read");
      }
      gap = begin + range.size_bytes();
    }
    if (!is_filler(gap, image() + image_bytes)) fail(op, "changed memory beside its tensors");
    const auto* const scratch_end = static_cast<const std::byte*>(scratch_end_.data());
    if (!is_filler(scratch_end, scratch_end + kGuardBytes)) fail(op, "wrote beyond its scratch");
  }

  static void fail(const Op& op, const char* what) { throw std::runtime_error(std::string(op_name(op)) + " " + what); }

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Stream> stream_;
  Buffer image_;
  Buffer dev_image_;
  Buffer filler_;  // what fresh scratch is filled with
  Buffer dev_scratch_;
  Buffer scratch_end_;
};

}  // namespace

OpRunner backend_runner(std::unique_ptr<Backend> backend) {
  const std::string name = backend->capabilities().name;
  const auto runner = std::make_shared<BackendRunner>(std::move(backend));
  return {name, [runner](const Op& op) { runner->run(op); }};
}

}  // namespace ferry::test
