// SPDX-License-Identifier: Apache-2.0
// A folder of files that appears under its name only when complete: final weights and checkpoints.
#pragma once

#include <filesystem>

#include "io/posix_file.h"

namespace ferry {

/// How a new folder takes the place of an old one.
enum class FolderSwap {
  kExchange,    // one system call: the name always holds a complete folder; falls back where the file system cannot
  kTwoRenames,  // old aside, new in: a crash between the two leaves the old one aside until the next recover()
};

/// Files are written into path(), a hidden sibling of the destination, locked while in use. commit() makes them durable
/// and puts the folder in place. Destroyed before commit(), it leaves the destination as it was.
/// The folder is flat: it holds files, no folders. Errors: Error{kIo}.
class AtomicFolder {
 public:
  /// Creates missing parents; calls recover(). A destination that exists must be a folder that holds files only, since
  /// commit() deletes it: a home folder named by mistake is refused here, before hours of training.
  explicit AtomicFolder(const std::filesystem::path& destination);
  AtomicFolder(const AtomicFolder&) = delete;
  AtomicFolder& operator=(const AtomicFolder&) = delete;
  ~AtomicFolder();

  /// Where to write the files.
  const std::filesystem::path& path() const { return temporary_; }

  /// Blocks until everything is on the disk. At most once.
  void commit(FolderSwap swap = FolderSwap::kExchange);

  /// Tidies up after a process that died while writing `destination`: puts an old folder back that was moved aside and
  /// never replaced, and removes temporary folders that no living process holds.
  static void recover(const std::filesystem::path& destination);

 private:
  void create_temporary();
  void swap_in_two_renames();

  std::filesystem::path destination_;
  std::filesystem::path temporary_;
  FileDescriptor lock_;
  bool committed_ = false;
};

}  // namespace ferry
