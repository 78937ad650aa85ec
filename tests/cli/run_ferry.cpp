// SPDX-License-Identifier: Apache-2.0
// fork and exec, nothing more.
#include "cli/run_ferry.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <iterator>
#include <sstream>
#include <thread>

namespace ferry::test {
namespace {

void redirect(int descriptor, const std::filesystem::path& path) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  dup2(file, descriptor);
  close(file);
}

}  // namespace

FerryProcess::FerryProcess(const TempFolder& folder, const std::vector<std::string>& args)
    : out_(folder.path() / ".stdout"), err_(folder.path() / ".stderr") {
  std::vector<std::string> words = {FERRY_EXECUTABLE};
  words.insert(words.end(), args.begin(), args.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  for (const auto& old : {out_, err_}) std::filesystem::remove(old);  // of a run before: wait_for must not see it
  child_ = fork();
  if (child_ != 0) return;
  redirect(STDOUT_FILENO, out_);
  redirect(STDERR_FILENO, err_);
  if (chdir(folder.path().c_str()) != 0) _exit(127);
  execv(argv[0], argv.data());
  _exit(127);
}

Outcome FerryProcess::wait() {
  if (!ended_) waitpid(child_, &status_, 0);
  ended_ = true;
  const int code = WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_);
  return {.exit_code = code, .out = read_file(out_), .err = read_file(err_)};
}

void FerryProcess::send(int signal) const { kill(child_, signal); }

bool FerryProcess::wait_for(const std::string& text) {
  while (read_file(out_).find(text) == std::string::npos) {
    if (!ended_ && waitpid(child_, &status_, WNOHANG) == child_) ended_ = true;
    if (ended_) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

Outcome run_ferry(const TempFolder& folder, const std::vector<std::string>& args) {
  return FerryProcess(folder, args).wait();
}

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string one_line(const std::string& report) {
  std::istringstream words(report);
  std::string text, word;
  while (words >> word) text += (text.empty() ? "" : " ") + word;
  return text;
}

}  // namespace ferry::test
