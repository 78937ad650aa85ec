// SPDX-License-Identifier: Apache-2.0
#include "io/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "io/file_test_helpers.h"

namespace ferry {
namespace {

using namespace test;

void write_text(AtomicFile& file, std::string_view text) { file.write(std::as_bytes(std::span(text))); }

TEST_CASE("a file appears when committed, from all its pieces") {
  const TemporaryFolder folder;
  AtomicFile file(folder / "a");
  write_text(file, "one ");
  write_text(file, "two");
  CHECK_FALSE(std::filesystem::exists(folder / "a"));
  file.commit();
  CHECK(read_file(folder / "a") == "one two");
  CHECK(folder.n_entries() == 1);
}

TEST_CASE("a file that is not committed leaves the old one and nothing else") {
  const TemporaryFolder folder;
  write_file(folder / "a", "old");
  {
    AtomicFile file(folder / "a");
    write_text(file, "new");
  }
  CHECK(read_file(folder / "a") == "old");
  CHECK(folder.n_entries() == 1);
}

TEST_CASE("write_file_atomically replaces a file") {
  const TemporaryFolder folder;
  write_file(folder / "a", "old");
  write_file_atomically(folder / "a", "new");
  CHECK(read_file(folder / "a") == "new");
  CHECK(folder.n_entries() == 1);
}

TEST_CASE("a file in a missing folder is an error with its name") {
  const TemporaryFolder folder;
  check_error(ErrorKind::kIo, {"cannot create", "absent/a"}, [&] { AtomicFile(folder / "absent/a"); });
}

TEST_CASE("a folder's name with a slash names no file") {
  const TemporaryFolder folder;
  check_error(ErrorKind::kIo, {"names no file"}, [&] { AtomicFile(folder / "a/"); });
}

TEST_CASE("a file replaces no folder, pipe or device, and that is known before it is written") {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "a");
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  std::filesystem::create_symlink("/dev/null", folder / "null");
  check_error(ErrorKind::kIo, {"cannot create", "/a: it is a folder"}, [&] { AtomicFile(folder / "a"); });
  check_error(ErrorKind::kIo, {"/pipe: it is a pipe or device"}, [&] { check_writable(folder / "pipe"); });
  check_error(ErrorKind::kIo, {"/null: it is a pipe or device"}, [&] { check_writable(folder / "null"); });
  CHECK(folder.n_entries() == 3);
}

TEST_CASE("a folder that appears in the meantime is an error of commit") {
  const TemporaryFolder folder;
  AtomicFile file(folder / "a");
  std::filesystem::create_directory(folder / "a");
  check_error(ErrorKind::kIo, {"cannot create", "/a"}, [&] { file.commit(); });
}

TEST_CASE("check_writable leaves nothing, and a file as it is") {
  const TemporaryFolder folder;
  write_file(folder / "old", "old");
  check_writable(folder / "old");
  check_writable(folder / "new");
  CHECK(read_file(folder / "old") == "old");
  CHECK(folder.n_entries() == 1);
  check_error(ErrorKind::kIo, {"cannot create", "absent/a"}, [&] { check_writable(folder / "absent/a"); });
}

TEST_CASE("a full disk is an error with the file's name") {
  if (!std::filesystem::exists("/dev/full")) return;
  const FileDescriptor full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  const std::string text = "x";
  check_error(ErrorKind::kIo, {"cannot write some/file: No space left"},
              [&] { write_all(full, std::as_bytes(std::span(text)), "some/file"); });
}

}  // namespace
}  // namespace ferry
