// SPDX-License-Identifier: Apache-2.0
// One file under several names.
#include "io/file_identity.h"

#include "io/file_test_helpers.h"

namespace ferry {
namespace {

using namespace test;
namespace fs = std::filesystem;

/// The current directory of a test, set back at its end.
class CurrentFolder {
 public:
  explicit CurrentFolder(const fs::path& folder) : before_(fs::current_path()) { fs::current_path(folder); }
  ~CurrentFolder() {
    std::error_code ignored;
    fs::current_path(before_, ignored);
  }
  CurrentFolder(const CurrentFolder&) = delete;
  CurrentFolder& operator=(const CurrentFolder&) = delete;

 private:
  fs::path before_;
};

}  // namespace

TEST_CASE("a file is the same by every name, and no other") {
  const TemporaryFolder folder;
  const CurrentFolder here(folder.path());
  write_file("a", "same");
  write_file("b", "same");
  fs::create_symlink("a", "link");
  fs::create_hard_link("a", "hard");
  fs::create_directory("sub");
  fs::create_directory_symlink("sub", "linked");
  for (const fs::path& name : {fs::path("a"), fs::path("./a"), fs::path("sub/../a"), fs::path("linked/../a"),
                               folder / "a", fs::path("link"), fs::path("hard")}) {
    INFO(name);
    CHECK(same_file(name, "a"));
    CHECK(same_file("a", name));
    CHECK_FALSE(same_file(name, "b"));
  }
  CHECK_FALSE(same_file("a", "absent"));
  CHECK_FALSE(same_file("absent", "a"));
}

TEST_CASE("names without a file are the same where they would make one file") {
  const TemporaryFolder folder;
  const CurrentFolder here(folder.path());
  fs::create_directory("sub");
  fs::create_directory_symlink("sub", "linked");
  fs::create_symlink("new", "dangling");
  fs::create_symlink("endless", "endless");
  for (const fs::path& name : {fs::path("./new"), fs::path("sub/../new"), folder / "new", fs::path("dangling")}) {
    INFO(name);
    CHECK(same_file(name, "new"));
    CHECK_FALSE(same_file(name, "other"));
  }
  CHECK(same_file("sub/new", "linked/new"));
  CHECK(same_file("absent/new", folder / "absent/./new"));
  CHECK(same_file("absent/", "absent"));
  CHECK_FALSE(same_file("endless", "new"));
}

TEST_CASE("a file lies in its folders and in no other") {
  const TemporaryFolder folder;
  const CurrentFolder here(folder.path());
  fs::create_directories("sub/deep");
  fs::create_directory_symlink("sub", "linked");
  write_file("sub/deep/a", "");
  for (const fs::path& name : {fs::path("sub/deep/a"), fs::path("linked/deep/a"), folder / "sub/new",
                               fs::path("sub/absent/new"), fs::path("sub"), fs::path("linked/")}) {
    INFO(name);
    CHECK(lies_in(name, "sub"));
    CHECK(lies_in(name, folder / "linked"));
    CHECK(lies_in(name, "."));
    CHECK_FALSE(lies_in(name, "other"));
  }
  CHECK(lies_in("absent/deep/new", "absent"));
  CHECK(lies_in("sub/deep/a", "sub/deep/a"));
  CHECK_FALSE(lies_in("sub2", "sub"));
  CHECK_FALSE(lies_in(".", "sub"));
}

}  // namespace ferry
