// SPDX-License-Identifier: Apache-2.0
// Processes that die while they save, and disks that are full: nothing older is ever lost.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <set>

#include "catch.h"
#include "thrown.h"
#include "train/checkpoint_store.h"
#include "train/faulty_files.h"
#include "train/resumable_run.h"

using namespace ferry;
using namespace ferry::test;

namespace {

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::set<std::string> names_in(const std::filesystem::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.insert(entry.path().filename().string());
  return names;
}

RunSpec short_run() {
  RunSpec spec = run_spec("short", DType::kBf16);
  spec.steps = 6;
  spec.save_every = 2;
  spec.keep_last = 1;
  return spec;
}

/// A run whose `countdown`-th call on files after step 3 meets a fault.
RunSpec faulty_run(FileFault fault, std::int64_t countdown) {
  RunSpec spec = short_run();
  spec.before_step = [=](Engine&, std::int64_t step) {
    if (step == 3) arm_file_fault(fault, countdown);
  };
  return spec;
}

/// Calls on files from step 4 to the end of a run.
std::int64_t calls_of_a_run() {
  const TempFolder place;
  ResumableRun(place.path() / "run", faulty_run(FileFault::kNone, 0)).train();
  return file_calls();
}

/// A run in a process of its own; whether it was killed.
bool killed_after(const std::filesystem::path& folder, std::int64_t countdown) {
  const pid_t child = fork();
  if (child == 0) {
    ResumableRun(folder, faulty_run(FileFault::kKill, countdown)).train();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

}  // namespace

// Of about 300 calls; 1 tries them all.
constexpr std::int64_t kStride = 7;

TEST_CASE("a process that is killed at any call of a save loses nothing but the steps since the save before") {
  const std::int64_t n_calls = calls_of_a_run();
  CHECK(n_calls > 100);
  const TempFolder place;
  ResumableRun straight(place.path() / "straight", short_run());
  straight.train();
  const RunTrace wanted = straight.trace();
  for (std::int64_t call = 0; call < n_calls; call += kStride) {
    INFO("killed at call " << call);
    const auto folder = place.path() / std::to_string(call);
    REQUIRE(killed_after(folder, call));
    const auto checkpoint = newest_whole_checkpoint(ResumableRun::checkpoints(folder));
    REQUIRE(checkpoint);
    CHECK(checkpoint->folder() == list_checkpoints(ResumableRun::checkpoints(folder)).back().folder);
    ResumableRun resumed(folder, short_run(), &*checkpoint);
    CHECK_FALSE(resumed.train().error);
    CHECK(resumed.trace() == wanted);
    std::set<std::string> left = names_in(ResumableRun::checkpoints(folder));
    CHECK(left.erase("step-00000006") == 1);
    left.erase("step-00000004");  // of a process that died before it could remove it
    CHECK(left.empty());
    std::filesystem::remove_all(folder);
  }
}

TEST_CASE("a full disk ends the run with advice and leaves older checkpoints whole") {
  const std::int64_t n_calls = calls_of_a_run() / 2;
  const TempFolder place;
  int n_errors = 0;
  for (std::int64_t call = 0; call < n_calls; ++call) {
    INFO("full at call " << call);
    const auto folder = place.path() / std::to_string(call);
    {
      ResumableRun run(folder, faulty_run(FileFault::kFail, call));
      const TrainResult result = run.train();
      arm_file_fault(FileFault::kNone, 0);
      if (result.error) ++n_errors;
      if (result.error && result.steps == 4) {
        const std::string message = thrown([&] { std::rethrow_exception(result.error); });
        if (!contains(message, "metrics.jsonl' failed")) {
          CHECK(contains(message, "the checkpoint of step 4 could not be saved, older ones are untouched"));
          CHECK(contains(message, "free space or lower keep_last, then resume from the newest with --resume auto"));
        }
      }
    }
    const auto checkpoint = newest_whole_checkpoint(ResumableRun::checkpoints(folder));
    REQUIRE(checkpoint);
    CHECK(checkpoint->state().trainer.step >= 2);
    tidy_checkpoints(ResumableRun::checkpoints(folder));
    for (const std::string& name : names_in(ResumableRun::checkpoints(folder))) CHECK(name.starts_with("step-"));
    std::filesystem::remove_all(folder);
  }
  CHECK(n_errors > n_calls / 2);
}
