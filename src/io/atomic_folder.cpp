// SPDX-License-Identifier: Apache-2.0
// Folder replacement by rename. The lock on the temporary folder tells a running writer from a dead one.
#include "io/atomic_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/log.h"
#include "io/printable.h"

namespace ferry {
namespace {

namespace fs = std::filesystem;

fs::path normalised(const fs::path& folder) {
  fs::path path = fs::absolute(folder);
  if (!path.has_filename()) path = path.parent_path();  // a trailing slash
  const std::string name = path.filename().string();
  FERRY_CHECK(!name.empty() && name != "." && name != "..", kIo, "{} cannot be replaced: give the folder by its name",
              folder.string());
  return path;
}

fs::path aside(const fs::path& destination) {
  return destination.parent_path() / fmt::format(".{}.old", destination.filename().string());
}

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> paths;
  std::error_code failure;
  for (fs::directory_iterator it(folder, failure), end; !failure && it != end; it.increment(failure)) {
    paths.push_back(it->path());
  }
  FERRY_CHECK(!failure, kIo, "cannot list {}: {}", folder.string(), failure.message());
  return paths;
}

void check_flat(const fs::path& folder) {
  for (const fs::path& path : entries_of(folder)) {
    std::error_code failure;
    FERRY_CHECK(
        fs::is_regular_file(fs::symlink_status(path, failure)), kIo,
        "{} holds {}, which is not a file: a folder that is written as a whole holds files only; choose another",
        folder.string(), printable_name(path.filename().string()));
  }
}

void check_replaceable(const fs::path& destination) {
  std::error_code failure;
  const fs::file_status status = fs::symlink_status(destination, failure);
  if (status.type() == fs::file_type::not_found) return;
  FERRY_CHECK(fs::is_directory(status), kIo, "{} exists and is not a folder: remove it or choose another",
              destination.string());
  check_flat(destination);
}

FileDescriptor lock_folder(const fs::path& folder) {
  FileDescriptor file(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (file && ::flock(file.get(), LOCK_EX | LOCK_NB) != 0) file.reset();
  return file;
}

// Never throws: used by destructors and for leftovers, where a message is all that can be done.
void remove_folder(const fs::path& folder) noexcept {
  std::error_code failure;
  fs::remove_all(folder, failure);
  if (failure) log::warn("cannot remove {}: {}", folder.string(), failure.message());
}

void rename_or_throw(const fs::path& from, const fs::path& to) {
  FERRY_CHECK(::rename(from.c_str(), to.c_str()) == 0, kIo, "cannot rename {} to {}: {}", from.string(), to.string(),
              system_message());
}

}  // namespace

AtomicFolder::AtomicFolder(const fs::path& destination) : destination_(normalised(destination)) {
  std::error_code failure;
  fs::create_directories(destination_.parent_path(), failure);
  FERRY_CHECK(!failure, kIo, "cannot create {}: {}", destination_.parent_path().string(), failure.message());
  recover(destination_);
  check_replaceable(destination_);
  create_temporary();
}

void AtomicFolder::create_temporary() {
  // A name may be left over from a dead process with this process's id.
  do {
    temporary_ = temporary_sibling(destination_);
    if (::mkdir(temporary_.c_str(), 0777) == 0) break;
    FERRY_CHECK(errno == EEXIST, kIo, "cannot create {}: {}", temporary_.string(), system_message());
  } while (true);
  lock_ = lock_folder(temporary_);  // empty where the file system has no locks: then nobody removes leftovers either
}

AtomicFolder::~AtomicFolder() {
  if (!committed_) remove_folder(temporary_);
}

void AtomicFolder::commit(FolderSwap swap) {
  FERRY_ASSERT(!committed_);
  check_flat(temporary_);
  for (const fs::path& file : entries_of(temporary_)) sync_to_disk(file);
  sync_to_disk(temporary_);
  check_replaceable(destination_);

  if (!fs::exists(destination_)) {
    rename_or_throw(temporary_, destination_);
    committed_ = true;
  } else if (swap == FolderSwap::kExchange &&
             ::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, destination_.c_str(), RENAME_EXCHANGE) == 0) {
    committed_ = true;
  } else {
    swap_in_two_renames();
  }
  sync_to_disk(destination_.parent_path());
  remove_folder(temporary_);  // after an exchange it holds the old files
}

void AtomicFolder::swap_in_two_renames() {
  const fs::path old = aside(destination_);
  rename_or_throw(destination_, old);
  if (::rename(temporary_.c_str(), destination_.c_str()) != 0) {
    const std::string reason = system_message();
    rename_or_throw(old, destination_);
    FERRY_CHECK(false, kIo, "cannot rename {} to {}: {}", temporary_.string(), destination_.string(), reason);
  }
  committed_ = true;
  remove_folder(old);
}

void AtomicFolder::recover(const fs::path& destination) {
  const fs::path path = normalised(destination);
  const fs::path old = aside(path);
  std::error_code failure;
  if (fs::exists(old, failure)) {
    if (fs::exists(path, failure)) {
      remove_folder(old);
    } else {
      rename_or_throw(old, path);
    }
  }
  if (!fs::is_directory(path.parent_path(), failure)) return;
  const std::string prefix = fmt::format(".{}.tmp-", path.filename().string());
  for (const fs::path& sibling : entries_of(path.parent_path())) {
    if (!sibling.filename().string().starts_with(prefix)) continue;
    if (const FileDescriptor lock = lock_folder(sibling)) remove_folder(sibling);
  }
}

}  // namespace ferry
