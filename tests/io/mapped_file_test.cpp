// SPDX-License-Identifier: Apache-2.0
#include "io/mapped_file.h"

#include <sys/stat.h>

#include "io/file_test_helpers.h"

namespace ferry {
namespace {

using namespace test;

TEST_CASE("a mapped file shows the file's bytes and keeps its address when moved") {
  const TemporaryFolder folder;
  write_file(folder / "a", "hello");
  MappedFile file(folder / "a");
  const std::byte* address = file.bytes().data();
  const MappedFile moved = std::move(file);
  CHECK(moved.bytes().data() == address);
  CHECK(std::string(reinterpret_cast<const char*>(address), moved.bytes().size()) == "hello");
}

TEST_CASE("an empty file maps to no bytes") {
  const TemporaryFolder folder;
  write_file(folder / "a", "");
  CHECK(MappedFile(folder / "a").bytes().empty());
}

TEST_CASE("a missing file is an error with its name") {
  const TemporaryFolder folder;
  check_error(ErrorKind::kIo, {"cannot open", "absent"}, [&] { MappedFile(folder / "absent"); });
}

TEST_CASE("a folder is no file") {
  const TemporaryFolder folder;
  check_error(ErrorKind::kIo, {folder.path().string(), "is a folder, expected a file"},
              [&] { MappedFile(folder.path()); });
}

TEST_CASE("a pipe is refused, not waited for") {
  const TemporaryFolder folder;
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  check_error(ErrorKind::kIo, {"pipe", "is a pipe or device"}, [&] { MappedFile(folder / "pipe"); });
}

}  // namespace
}  // namespace ferry
