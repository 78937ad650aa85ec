// SPDX-License-Identifier: Apache-2.0
// What exists is compared by device and inode, what does not by the path it would get.
#include "io/file_identity.h"

#include <system_error>

namespace ferry {
namespace {

namespace fs = std::filesystem;

/// Absolute, without links and trailing slash. weakly_canonical() stops at a link to a file that does not exist, which
/// a writer would create.
fs::path resolved(const fs::path& name) {
  constexpr int kMostLinks = 40;  // as Linux follows
  std::error_code failure;
  fs::path path = fs::absolute(name, failure);
  for (int i = 0; i < kMostLinks; ++i) {
    const fs::path canonical = fs::weakly_canonical(path, failure);
    if (failure) break;
    path = canonical.has_filename() ? canonical : canonical.parent_path();
    const fs::path target = fs::read_symlink(path, failure);
    if (failure) break;
    path = path.parent_path() / target;
  }
  return path;
}

}  // namespace

bool same_file(const fs::path& a, const fs::path& b) {
  std::error_code failure;
  if (fs::exists(a, failure) || fs::exists(b, failure)) return fs::equivalent(a, b, failure);
  return resolved(a) == resolved(b);
}

bool lies_in(const fs::path& path, const fs::path& folder) {
  std::error_code failure;
  if (fs::is_regular_file(folder, failure)) return same_file(path, folder);
  for (fs::path parent = resolved(path); !same_file(parent, folder); parent = parent.parent_path()) {
    if (!parent.has_relative_path()) return false;
  }
  return true;
}

}  // namespace ferry
