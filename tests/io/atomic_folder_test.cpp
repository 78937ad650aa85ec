// SPDX-License-Identifier: Apache-2.0
#include "io/atomic_folder.h"

#include "io/file_test_helpers.h"

namespace ferry {
namespace {

using namespace test;
namespace fs = std::filesystem;

void make_folder(const fs::path& path, std::string_view content) {
  fs::create_directory(path);
  write_file(path / "file", content);
}

TEST_CASE("a folder appears when committed, with its missing parents") {
  const TemporaryFolder folder;
  const fs::path destination = folder / "runs/a/";
  AtomicFolder output(destination);
  write_file(output.path() / "file", "new");
  CHECK_FALSE(fs::exists(destination));
  output.commit();
  CHECK(read_file(destination / "file") == "new");
  CHECK(std::distance(fs::directory_iterator(folder / "runs"), {}) == 1);
}

TEST_CASE("a committed folder replaces the old one as a whole") {
  const auto swap = GENERATE(FolderSwap::kExchange, FolderSwap::kTwoRenames);
  const TemporaryFolder folder;
  make_folder(folder / "a", "old");
  write_file(folder / "a/only_old", "");
  {
    AtomicFolder output(folder / "a");
    write_file(output.path() / "file", "new");
    output.commit(swap);
  }
  CHECK(read_file(folder / "a/file") == "new");
  CHECK_FALSE(fs::exists(folder / "a/only_old"));
  CHECK(folder.n_entries() == 1);
}

TEST_CASE("a folder that is not committed leaves the old one and nothing else") {
  const TemporaryFolder folder;
  make_folder(folder / "a", "old");
  {
    AtomicFolder output(folder / "a");
    write_file(output.path() / "file", "new");
  }
  CHECK(read_file(folder / "a/file") == "old");
  CHECK(folder.n_entries() == 1);
}

TEST_CASE("recover removes what a dead process left") {
  const TemporaryFolder folder;
  make_folder(folder / "a", "old");
  make_folder(folder / ".a.tmp-1-0", "half");
  AtomicFolder::recover(folder / "a");
  CHECK(read_file(folder / "a/file") == "old");
  CHECK(folder.n_entries() == 1);
}

TEST_CASE("recover leaves a folder that is being written, and other folders") {
  const TemporaryFolder folder;
  make_folder(folder / ".b.tmp-1-0", "another's");
  AtomicFolder output(folder / "a");
  AtomicFolder::recover(folder / "a");
  CHECK(fs::exists(output.path()));
  CHECK(fs::exists(folder / ".b.tmp-1-0"));
}

TEST_CASE("recover puts the old folder back after a crash between two renames") {
  const TemporaryFolder folder;
  make_folder(folder / ".a.old", "old");
  make_folder(folder / ".a.tmp-1-0", "new");
  AtomicFolder::recover(folder / "a");
  CHECK(read_file(folder / "a/file") == "old");
  CHECK(folder.n_entries() == 1);
}

TEST_CASE("recover removes the old folder after a crash behind the second rename") {
  const TemporaryFolder folder;
  make_folder(folder / ".a.old", "old");
  make_folder(folder / "a", "new");
  AtomicFolder::recover(folder / "a");
  CHECK(read_file(folder / "a/file") == "new");
  CHECK(folder.n_entries() == 1);
}

TEST_CASE("a destination that is a file is refused") {
  const TemporaryFolder folder;
  write_file(folder / "a", "");
  check_error(ErrorKind::kIo, {"/a exists and is not a folder"}, [&] { AtomicFolder(folder / "a"); });
}

TEST_CASE("a destination that holds folders is refused before anything is written") {
  const TemporaryFolder folder;
  fs::create_directories(folder / "home/photos");
  check_error(ErrorKind::kIo, {"/home holds photos, which is not a file"}, [&] { AtomicFolder(folder / "home"); });
  CHECK(folder.n_entries() == 1);
}

TEST_CASE("a folder inside of a new folder is refused at commit") {
  const TemporaryFolder folder;
  AtomicFolder output(folder / "a");
  fs::create_directory(output.path() / "inner");
  check_error(ErrorKind::kIo, {"holds inner, which is not a file"}, [&] { output.commit(); });
}

TEST_CASE("a destination without a name is refused") {
  check_error(ErrorKind::kIo, {"cannot be replaced"}, [] { AtomicFolder("."); });
  check_error(ErrorKind::kIo, {"cannot be replaced"}, [] { AtomicFolder("/"); });
}

TEST_CASE("a parent that cannot be made is an error with its name") {
  const TemporaryFolder folder;
  write_file(folder / "a", "");
  check_error(ErrorKind::kIo, {"cannot create", "/a"}, [&] { AtomicFolder(folder / "a/b"); });
}

}  // namespace
}  // namespace ferry
