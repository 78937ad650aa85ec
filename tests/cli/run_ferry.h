// SPDX-License-Identifier: Apache-2.0
// Runs the ferry program in a child process.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "temp_file.h"

namespace ferry::test {

struct Outcome {
  int exit_code = -1;  // 128 + signal when a signal ended it
  std::string out;
  std::string err;
};

/// A child that runs `ferry ARGS` in `folder`, with stdout and stderr in files there.
class FerryProcess {
 public:
  FerryProcess(const TempFolder& folder, const std::vector<std::string>& args);
  /// Waits for the end.
  Outcome wait();
  void send(int signal) const;
  /// Blocks until stdout holds `text`; false when the child ended before.
  bool wait_for(const std::string& text);

 private:
  std::filesystem::path out_;
  std::filesystem::path err_;
  pid_t child_ = -1;
  bool ended_ = false;
  int status_ = 0;
};

Outcome run_ferry(const TempFolder& folder, const std::vector<std::string>& args);

std::string read_file(const std::filesystem::path& path);

/// A report without its line breaks and columns: words with a space between.
std::string one_line(const std::string& report);

}  // namespace ferry::test
