// SPDX-License-Identifier: Apache-2.0
// Temporary name, fsync, rename, fsync of the folder: the order that survives a power cut.
#include "io/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <system_error>

#include "core/error.h"

namespace ferry {

namespace {

/// A rename would put a file in the place of a pipe or a device, and fails at a folder, after all has been written.
void check_replaceable(const std::filesystem::path& destination) {
  std::error_code failure;
  const std::filesystem::file_status status = std::filesystem::status(destination, failure);
  FERRY_CHECK(!exists(status) || is_regular_file(status), kIo, "cannot create {}: it is {}, give the name of a file",
              destination.string(), is_directory(status) ? "a folder" : "a pipe or device");
}

}  // namespace

AtomicFile::AtomicFile(const std::filesystem::path& destination)
    : destination_(std::filesystem::absolute(destination)), temporary_(temporary_sibling(destination_)) {
  FERRY_CHECK(destination_.has_filename(), kIo, "{} names no file", destination.string());
  check_replaceable(destination_);
  file_ = FileDescriptor(::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  FERRY_CHECK(file_, kIo, "cannot create {}: {}", destination_.string(), system_message());
}

AtomicFile::~AtomicFile() {
  if (file_) ::unlink(temporary_.c_str());
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  FERRY_ASSERT(file_);
  write_all(file_, bytes, destination_);
  checksum_.add(bytes);
  size_bytes_ += static_cast<std::int64_t>(bytes.size());
}

void AtomicFile::commit() {
  FERRY_ASSERT(file_);
  FERRY_CHECK(::fsync(file_.get()) == 0, kIo, "cannot write {} to the disk: {}", destination_.string(),
              system_message());
  FERRY_CHECK(::rename(temporary_.c_str(), destination_.c_str()) == 0, kIo, "cannot create {}: {}",
              destination_.string(), system_message());
  file_.reset();
  sync_to_disk(destination_.parent_path());
}

void check_writable(const std::filesystem::path& destination) { const AtomicFile file(destination); }

FileDigest write_file_atomically(const std::filesystem::path& destination, std::string_view content) {
  AtomicFile file(destination);
  file.write(std::as_bytes(std::span(content)));
  file.commit();
  return file.digest();
}

}  // namespace ferry
