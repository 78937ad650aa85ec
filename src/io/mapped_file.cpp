// SPDX-License-Identifier: Apache-2.0
// mmap and its error cases.
#include "io/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <utility>

#include "core/error.h"
#include "io/posix_file.h"

namespace ferry {

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  // O_NONBLOCK: opening a pipe that nobody writes to must fail, not hang.
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  FERRY_CHECK(file, kIo, "cannot open {}: {}", path.string(), system_message());
  struct stat info {};
  FERRY_CHECK(::fstat(file.get(), &info) == 0, kIo, "cannot read {}: {}", path.string(), system_message());
  FERRY_CHECK(S_ISREG(info.st_mode), kIo, "{} is {}, expected a file", path.string(),
              S_ISDIR(info.st_mode) ? "a folder" : "a pipe or device");
  if (info.st_size == 0) return;
  const auto size_bytes = static_cast<std::size_t>(info.st_size);
  void* address = ::mmap(nullptr, size_bytes, PROT_READ, MAP_PRIVATE, file.get(), 0);
  FERRY_CHECK(address != MAP_FAILED, kIo, "cannot map {} ({} bytes): {}", path.string(), size_bytes, system_message());
  bytes_ = {static_cast<const std::byte*>(address), size_bytes};
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

std::string read_whole_file(const std::filesystem::path& path, std::size_t most_bytes) {
  const MappedFile file(path);
  const std::span<const std::byte> bytes = file.bytes();
  FERRY_CHECK(bytes.size() <= most_bytes, kIo, "{} has {} bytes, at most {} are expected", path.string(), bytes.size(),
              most_bytes);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace ferry
