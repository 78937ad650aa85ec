// SPDX-License-Identifier: Apache-2.0
// The list's format is that of xxh128sum.
#include "train/checkpoint_checksums.h"

#include <array>
#include <system_error>
#include <utility>

#include "core/error.h"
#include "io/mapped_file.h"
#include "io/printable.h"
#include "train/checkpoint_store.h"

namespace ferry {
namespace {

namespace fs = std::filesystem;

constexpr std::array<const char*, 4> kRequired{kCheckpointStateFile, kCheckpointModel, kCheckpointOptimizer,
                                               "config.json"};
constexpr std::size_t kMaxChecksumsBytes = std::size_t{1} << 16;

void compare(const fs::path& path, const FileDigest& found, const FileDigest& written) {
  FERRY_CHECK(written.size_bytes < 0 || found.size_bytes == written.size_bytes, kIo,
              "{} is damaged: it has {} bytes, {} were written", path.string(), found.size_bytes, written.size_bytes);
  FERRY_CHECK(found.checksum == written.checksum, kIo, "{} is damaged: its checksum is {}, {} was written",
              path.string(), found.checksum, printable_name(written.checksum));
}

}  // namespace

CheckpointChecksums::CheckpointChecksums(const fs::path& folder) : folder_(folder) {
  constexpr std::size_t kDigits = 32;
  const fs::path path = folder / kCheckpointChecksums;
  const std::string text = read_whole_file(path, kMaxChecksumsBytes);
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    const std::string line = text.substr(begin, end == std::string::npos ? end : end - begin);
    const bool fine = end != std::string::npos && line.size() > kDigits + 2 && line.compare(kDigits, 2, "  ") == 0 &&
                      line.find('/') == std::string::npos;
    FERRY_CHECK(fine && by_name_.emplace(line.substr(kDigits + 2), line.substr(0, kDigits)).second, kIo,
                "{} is damaged: its line '{}' is no checksum and name", path.string(), printable_name(line));
    begin = end + 1;
  }
  for (const char* name : kRequired) {
    FERRY_CHECK(by_name_.contains(name), kIo, "{} is damaged: it lacks {}", path.string(), name);
  }
}

std::optional<CheckpointChecksums> CheckpointChecksums::find(const fs::path& folder) {
  std::error_code failure;
  if (!fs::exists(folder / kCheckpointChecksums, failure)) return std::nullopt;
  return CheckpointChecksums(folder);
}

void CheckpointChecksums::check_file(const std::string& name, std::int64_t size_bytes) const {
  compare(folder_ / name, digest_of(folder_ / name), {size_bytes, by_name_.at(name)});
}

ReadAlongCheck::ReadAlongCheck(const SafetensorsFile& file, std::string checksum)
    : file_(file), wanted_(std::move(checksum)) {}

void ReadAlongCheck::reach(const std::byte* end) {
  const std::span<const std::byte> bytes = file_.bytes();
  const auto end_bytes = static_cast<std::size_t>(end - bytes.data());
  FERRY_ASSERT(end_bytes <= bytes.size());
  if (end_bytes <= hashed_bytes_) return;
  checksum_.add(bytes.subspan(hashed_bytes_, end_bytes - hashed_bytes_));
  hashed_bytes_ = end_bytes;
}

void ReadAlongCheck::finish() {
  const std::span<const std::byte> bytes = file_.bytes();
  reach(bytes.data() + bytes.size());
  compare(file_.path(), {static_cast<std::int64_t>(bytes.size()), checksum_.text()}, {-1, wanted_});
}

}  // namespace ferry
