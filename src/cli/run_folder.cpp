// SPDX-License-Identifier: Apache-2.0
// What may be overwritten: an empty folder, or what a run left that ended before it saved weights.
#include "cli/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <string_view>
#include <system_error>
#include <vector>

#include "core/error.h"
#include "io/atomic_file.h"
#include "io/file_identity.h"
#include "io/printable.h"
#include "train/checkpoint_store.h"
#include "train/companion_files.h"

namespace ferry {
namespace {

namespace fs = std::filesystem;

/// Of what a run writes; a trace is where the user wants it.
template <class Fits>
bool any_own_name(const Fits& fits) {
  return fits("trace.json") || std::ranges::any_of(kRunFolderNames, fits);
}

bool is_own_file(const std::string& name) {
  return any_own_name([&](std::string_view own) { return name == own || name.starts_with(fmt::format(".{}.", own)); });
}

bool is_temporary(const std::string& name) {
  return any_own_name([&](std::string_view own) { return name.starts_with(fmt::format(".{}.tmp-", own)); });
}

}  // namespace

RunFolder::RunFolder(fs::path folder, const fs::path& log_file, Use use) : folder_(std::move(folder)), use_(use) {
  FERRY_CHECK(!folder_.empty(), kConfig, "no output folder: set output, or give --output");
  std::error_code error;
  if (!fs::exists(folder_, error)) return;
  const std::string shown = printable_name(folder_.string());
  FERRY_CHECK(fs::is_directory(folder_, error), kIo, "output '{}' is a file: give a folder", shown);
  check_no_weights();
  check_model_files();
  fs::directory_iterator entries(folder_, error);
  FERRY_CHECK(!error, kIo, "output '{}' cannot be read: {}", shown, error.message());
  for (const fs::directory_entry& entry : entries) {
    const bool expected = is_own_file(entry.path().filename().string()) || same_file(entry.path(), log_file);
    FERRY_CHECK(expected, kIo,
                "output '{}' holds a file that is not of a ferry run, '{}': give a new or an empty folder", shown,
                printable_name(entry.path().filename().string()));
  }
}

void RunFolder::check_no_weights() const {
  if (use_ == Use::kResumed) return;
  std::error_code error;
  const std::string shown = printable_name(folder_.string());
  FERRY_CHECK(
      list_checkpoints(checkpoints()).empty(), kIo,
      "output '{}' holds checkpoints of an earlier run: go on with it by --resume auto, or give this run another "
      "folder with --output",
      shown);
  FERRY_CHECK(
      !fs::exists(model(), error), kIo,
      "output '{}' holds the weights of an earlier run: give this run another folder with --output, or remove that "
      "one",
      shown);
}

/// At its end a resumed run replaces the whole folder.
void RunFolder::check_model_files() const {
  std::error_code error;
  for (fs::directory_iterator it(model(), error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    const bool own = name == "config.json" || name == "model.safetensors" || is_companion_file(name) ||
                     name.find(".tmp-") != std::string::npos;
    FERRY_CHECK(own, kIo, "'{}' holds '{}', which is not of a ferry run and would be lost: move it elsewhere",
                printable_name(model().string()), printable_name(name));
  }
}

void RunFolder::create(const std::string& config_toml) {
  std::error_code error;
  const std::string shown = printable_name(folder_.string());
  fs::create_directories(folder_, error);
  FERRY_CHECK(!error, kIo, "output folder '{}' cannot be created: {}", shown, error.message());
  lock_ = FileDescriptor(open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  FERRY_CHECK(lock_ && flock(lock_.get(), LOCK_EX | LOCK_NB) == 0, kIo,
              "output '{}' is in use by another run: give this run another folder with --output", shown);
  check_no_weights();  // it may have got them meanwhile
  remove_leftovers();
  write_file_atomically(config(), config_toml);
}

/// The lock says that no other run is at work here.
void RunFolder::remove_leftovers() const {
  std::error_code error;
  std::vector<fs::path> leftovers;
  for (fs::directory_iterator it(folder_, error), end; !error && it != end; it.increment(error)) {
    const bool file = fs::is_regular_file(fs::symlink_status(it->path(), error));  // folders have their own recovery
    if (file && is_temporary(it->path().filename().string())) leftovers.push_back(it->path());
  }
  for (const fs::path& leftover : leftovers) fs::remove(leftover, error);
}

fs::path find_model_folder(const fs::path& path) {
  std::error_code error;
  for (const fs::path& folder : {path, path / "model"}) {
    if (fs::exists(folder / "config.json", error)) return folder;
  }
  const std::vector<StoredCheckpoint> stored = list_checkpoints(path / "checkpoints");
  for (auto it = stored.rbegin(); it != stored.rend(); ++it) {
    if (fs::exists(it->folder / "config.json", error)) return it->folder;
  }
  detail::throw_error(
      ErrorKind::kIo,
      fmt::format("'{}' holds no model: expected a folder with config.json and model.safetensors, or the "
                  "output folder of a training run",
                  printable_name(path.string())));
}

}  // namespace ferry
