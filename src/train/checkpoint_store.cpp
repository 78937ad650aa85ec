// SPDX-License-Identifier: Apache-2.0
// Listing and removing checkpoint folders.
#include "train/checkpoint_store.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>

#include "core/error.h"
#include "core/human_units.h"
#include "core/log.h"
#include "io/atomic_folder.h"
#include "io/posix_file.h"
#include "io/printable.h"

namespace ferry {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-";
constexpr std::size_t kLeastDigits = 8;

/// The step of "step-00000100"; nothing for any other spelling.
std::optional<std::int64_t> step_of(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const std::string_view digits = name.substr(kPrefix.size());
  std::int64_t step = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  if (error != std::errc() || end != digits.data() + digits.size() || step < 0) return std::nullopt;
  return checkpoint_name(step) == name ? std::optional(step) : std::nullopt;
}

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> entries;
  std::error_code failure;
  if (!fs::exists(folder, failure)) return entries;
  for (fs::directory_iterator it(folder, failure), end; !failure && it != end; it.increment(failure)) {
    entries.push_back(it->path());
  }
  FERRY_CHECK(!failure, kIo, "cannot list '{}': {}", printable_name(folder.string()), failure.message());
  return entries;
}

bool is_file(const fs::path& path) {
  std::error_code failure;
  return fs::is_regular_file(fs::symlink_status(path, failure));
}

bool holds_a_checkpoint(const fs::path& folder) {
  return is_file(folder / kCheckpointStateFile) && is_file(folder / kCheckpointChecksums) &&
         std::ranges::all_of(entries_of(folder), is_file);
}

/// Under a temporary name first: half of a checkpoint is never seen under its own.
void remove_checkpoint(const fs::path& folder) {
  const fs::path doomed = temporary_sibling(folder);
  std::error_code failure;
  fs::rename(folder, doomed, failure);
  if (!failure) fs::remove_all(doomed, failure);
  if (failure) log::warn("cannot remove '{}': {}", printable_name(folder.string()), failure.message());
}

std::size_t bytes_of(const fs::path& folder) {
  std::size_t bytes = 0;
  std::error_code failure;
  for (const fs::path& file : entries_of(folder)) {
    const std::uintmax_t size = fs::file_size(file, failure);
    if (!failure) bytes += static_cast<std::size_t>(size);
  }
  return bytes;
}

/// The folder itself, or the nearest above it that exists.
fs::path existing(fs::path folder) {
  std::error_code failure;
  folder = fs::absolute(folder, failure);
  while (!fs::exists(folder, failure) && folder.has_relative_path()) folder = folder.parent_path();
  return folder;
}

/// Of the disk of `output`; nothing where nobody knows.
std::optional<std::size_t> free_bytes(const fs::path& output) {
  std::error_code failure;
  const fs::space_info space = fs::space(existing(output), failure);
  return failure ? std::nullopt : std::optional<std::size_t>(space.available);
}

}  // namespace

std::string checkpoint_name(std::int64_t step) { return fmt::format("{}{:0{}}", kPrefix, step, kLeastDigits); }

std::vector<StoredCheckpoint> list_checkpoints(const fs::path& folder) {
  std::vector<StoredCheckpoint> found;
  for (const fs::path& entry : entries_of(folder)) {
    std::error_code failure;
    const auto step = step_of(entry.filename().string());
    if (step && fs::is_directory(fs::symlink_status(entry, failure))) found.push_back({*step, entry});
  }
  std::ranges::sort(found, {}, &StoredCheckpoint::step);
  return found;
}

void tidy_checkpoints(const fs::path& folder) {
  std::set<std::string> names;
  for (const fs::path& entry : entries_of(folder)) {
    const std::string name = entry.filename().string();  // ".step-00000100.tmp-12-0", ".step-00000100.old"
    if (!name.starts_with('.')) continue;
    const std::string stem = name.substr(1, name.find('.', 1) - 1);
    if (step_of(stem)) names.insert(stem);
  }
  for (const std::string& name : names) AtomicFolder::recover(folder / name);
}

void prune_checkpoints(const fs::path& folder, std::int64_t step, std::int64_t keep_last) {
  FERRY_ASSERT(keep_last >= 1);
  std::vector<StoredCheckpoint> older = list_checkpoints(folder);
  std::erase_if(older, [step](const StoredCheckpoint& checkpoint) { return checkpoint.step >= step; });
  for (std::int64_t i = 0; i < std::ssize(older) - (keep_last - 1); ++i) {
    const fs::path& oldest = older[static_cast<std::size_t>(i)].folder;
    if (holds_a_checkpoint(oldest)) remove_checkpoint(oldest);
  }
}

void check_checkpoint_space(const fs::path& output, std::int64_t keep_last, std::size_t checkpoint_bytes,
                            std::size_t model_bytes) {
  const std::optional<std::size_t> free = free_bytes(output);
  if (!free) return;
  std::size_t there = 0;
  for (const StoredCheckpoint& checkpoint : list_checkpoints(output / "checkpoints")) {
    there += bytes_of(checkpoint.folder);
  }
  const std::size_t wanted = static_cast<std::size_t>(keep_last + 1) * checkpoint_bytes + model_bytes;
  FERRY_CHECK(
      wanted <= *free + there, kIo,
      "{} checkpoints of {} (keep_last = {}, and one while it is written) and the final model need {} in '{}', {} are "
      "free: free space, lower keep_last, give an output on another disk, or set save_every = 0",
      keep_last + 1, human_bytes(checkpoint_bytes), keep_last, human_bytes(wanted), printable_name(output.string()),
      human_bytes(*free + there));
}

void check_model_space(const fs::path& output, std::size_t model_bytes) {
  const std::optional<std::size_t> free = free_bytes(output);
  FERRY_CHECK(!free || model_bytes <= *free, kIo,
              "the final model takes {} in '{}', {} are free: free space, or give an output on another disk",
              human_bytes(model_bytes), printable_name(output.string()), human_bytes(free.value_or(0)));
}

}  // namespace ferry
