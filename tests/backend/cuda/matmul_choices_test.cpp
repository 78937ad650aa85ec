// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/matmul_choices.h"

#include <cstdlib>
#include <fstream>
#include <iterator>

#include "catch.h"
#include "temp_file.h"

using namespace ferry;
using namespace ferry::cuda;
namespace fs = std::filesystem;

namespace {

std::string read(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

void write(const fs::path& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

const std::string kHead = "# ferry matmul choices 1\n";

}  // namespace

TEST_CASE("a choice is found again by the same machine, by another process too") {
  const TempFolder folder;
  const fs::path file = folder.path() / "new/choices.txt";
  MatmulChoices first(file, "H200 cublasLt 130100");
  CHECK(!first.find("m1 n2 k3"));
  CHECK(first.keep("m1 n2 k3", "algo66 tile1") == "algo66 tile1");
  CHECK(first.find("m1 n2 k3") == "algo66 tile1");
  CHECK(read(file) == kHead + "H200 cublasLt 130100\tm1 n2 k3\talgo66 tile1\n");
  CHECK(MatmulChoices(file, "H200 cublasLt 130100").find("m1 n2 k3") == "algo66 tile1");
}

TEST_CASE("choices of another device or library version are not taken, and stay in the file") {
  const TempFolder folder;
  const fs::path file = folder.path() / "choices.txt";
  MatmulChoices(file, "A100 cublasLt 120400").keep("m1", "algo1");
  MatmulChoices other(file, "A100 cublasLt 130100");
  CHECK(!other.find("m1"));
  other.keep("m1", "algo2");
  CHECK(read(file) == kHead + "A100 cublasLt 120400\tm1\talgo1\n" + "A100 cublasLt 130100\tm1\talgo2\n");
}

TEST_CASE("a choice that another process stored first holds") {
  const TempFolder folder;
  const fs::path file = folder.path() / "choices.txt";
  MatmulChoices slow(file, "m");
  MatmulChoices(file, "m").keep("p", "theirs");
  CHECK(slow.keep("p", "mine") == "theirs");
  CHECK(slow.find("p") == "theirs");
  CHECK(read(file) == kHead + "m\tp\ttheirs\n");
}

TEST_CASE("a forgotten choice is replaced, in the file too") {
  const TempFolder folder;
  const fs::path file = folder.path() / "choices.txt";
  write(file, kHead + "m\tp\tunknown\nm\tq\tgood\n");
  MatmulChoices choices(file, "m");
  choices.forget("p");
  CHECK(!choices.find("p"));
  CHECK(choices.keep("p", "known") == "known");
  CHECK(read(file) == kHead + "m\tp\tknown\nm\tq\tgood\n");
}

TEST_CASE("a file that is not ours, or broken, is ignored and set aside when it is rewritten") {
  const TempFolder folder;
  const fs::path file = folder.path() / "choices.txt";
  const std::string texts[] = {"",
                               "hello\n",
                               "# ferry matmul choices 2\nm\tp\tc\n",
                               kHead + "m\tp\n",
                               kHead + "m\tp\tc\n\n",
                               kHead + "m\t\tc\n",
                               kHead + "m\tp\tc\td\n",
                               kHead + "m\tp\t\x01\n",
                               kHead + std::string("m\tp\tc\0\n", 7),
                               std::string(17 << 20, 'x')};
  for (const std::string& text : texts) {
    CAPTURE(text.substr(0, 60));
    write(file, text);
    MatmulChoices choices(file, "m");
    CHECK(!choices.find("p"));
    CHECK(read(file) == text);
    choices.keep("p", "new");
    CHECK(read(file) == kHead + "m\tp\tnew\n");
    CHECK(read(folder.path() / "choices.txt.old") == text);
  }
}

TEST_CASE("a folder in the file's place stays, choices hold in memory") {
  const TempFolder folder;
  fs::create_directories(folder.path() / "choices.txt");
  MatmulChoices choices(folder.path() / "choices.txt", "m");
  CHECK(choices.keep("p", "c") == "c");
  CHECK(choices.find("p") == "c");
  CHECK(fs::is_directory(folder.path() / "choices.txt"));
}

TEST_CASE("a place that cannot be written, or none, keeps choices in memory") {
  for (const char* file : {"/proc/nowhere/choices.txt", ""}) {
    MatmulChoices choices(file, "m");
    CHECK(choices.keep("p", "c") == "c");
    CHECK(choices.find("p") == "c");
  }
}

TEST_CASE("nothing but the file is left in its folder") {
  const TempFolder folder;
  MatmulChoices(folder.path() / "choices.txt", "m").keep("p", "c");
  CHECK(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()) == 1);
}

TEST_CASE("the file lies in the cache folder of the user") {
  unsetenv("FERRY_MATMUL_CACHE");
  setenv("XDG_CACHE_HOME", "/cache", 1);
  CHECK(default_choices_file() == "/cache/ferry/matmul_choices.txt");
  unsetenv("XDG_CACHE_HOME");
  setenv("HOME", "/home/me", 1);
  CHECK(default_choices_file() == "/home/me/.cache/ferry/matmul_choices.txt");
  unsetenv("HOME");
  CHECK(default_choices_file().empty());
  setenv("FERRY_MATMUL_CACHE", "pinned.txt", 1);
  CHECK(default_choices_file() == "pinned.txt");
  unsetenv("FERRY_MATMUL_CACHE");
}
