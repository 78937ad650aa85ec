// SPDX-License-Identifier: Apache-2.0
// Whether two names mean one file, however they are spelt.
#pragma once

#include <filesystem>

namespace ferry {

/// Whether both names lead to the same file or folder: through links, relative paths and hard links; of two names
/// without a file, whether they would. Never throws: what cannot be looked at is no file.
bool same_file(const std::filesystem::path& a, const std::filesystem::path& b);

/// Whether `path` is `folder`, in the sense of same_file(), or lies in it at any depth; neither need exist.
bool lies_in(const std::filesystem::path& path, const std::filesystem::path& folder);

}  // namespace ferry
