// SPDX-License-Identifier: Apache-2.0
// The program: picks the command; the only place that catches everything and exits.
#include <fmt/core.h>
#include <signal.h>

#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "cli/command_line.h"
#include "cli/commands.h"
#include "core/error.h"
#include "core/log.h"

namespace {

bool is_printed() { return std::fflush(stdout) == 0 && std::ferror(stdout) == 0; }

int report_not_printed() {
  ferry::log::error("writing to stdout failed: is the disk full?");
  return ferry::exit_code(ferry::ErrorKind::kIo);
}

int run_command(const ferry::CommandLine& line) {
  switch (line.command) {
    case ferry::Command::kTrain: return ferry::run_train(line);
    case ferry::Command::kGenerate: return ferry::run_generate(line);
    case ferry::Command::kEval: return ferry::run_eval(line);
    case ferry::Command::kExport: return ferry::run_export(line);
    case ferry::Command::kInspect: return ferry::run_inspect(line);
    case ferry::Command::kPlan: return ferry::run_plan(line);
    case ferry::Command::kBench: return ferry::run_bench(line);
  }
  return ferry::kExitInternal;
}

int run(const std::vector<std::string>& args) {
  const ferry::CommandLine line = ferry::parse_command_line(args);
  if (!line.text.empty()) {
    fmt::print("{}", line.text);
  } else if (const int code = run_command(line); code != 0 || line.command == ferry::Command::kTrain) {
    return code;  // what train prints is in its output folder too
  }
  return is_printed() ? 0 : report_not_printed();
}

}  // namespace

int main(int argc, char** argv) {
  signal(SIGXFSZ, SIG_IGN);  // a file that outgrows `ulimit -f` is an error of its write, not the end
  try {
    return run(std::vector<std::string>(argv + 1, argv + argc));
  } catch (const ferry::Error& error) {
    ferry::log::error("{}", error.what());
    return ferry::exit_code(error.kind());
  } catch (const std::bad_alloc&) {
    ferry::log::error("out of host memory: lower batch_size or seq_len, or use a smaller model");
    return ferry::exit_code(ferry::ErrorKind::kMemory);
  } catch (const std::exception& error) {
    if (std::ferror(stdout) != 0) return report_not_printed();
    ferry::log::error("internal error, please report it: {}", error.what());
    return ferry::kExitInternal;
  }
}
