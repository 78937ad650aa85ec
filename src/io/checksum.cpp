// SPDX-License-Identifier: Apache-2.0
// The one source that sees xxHash, compiled in from its header.
#include "io/checksum.h"

#include <fmt/core.h>

#define XXH_INLINE_ALL  // NOLINT(readability-identifier-naming): xxHash's own name
#include <xxhash.h>

#include "io/mapped_file.h"

namespace ferry {

struct Checksum::State {
  XXH3_state_t xxh3;  // wants 64-byte alignment, which its type asks for
};

Checksum::Checksum() : state_(std::make_unique<State>()) { XXH3_128bits_reset(&state_->xxh3); }

Checksum::~Checksum() = default;

void Checksum::add(std::span<const std::byte> bytes) { XXH3_128bits_update(&state_->xxh3, bytes.data(), bytes.size()); }

std::string Checksum::text() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(&state_->xxh3);
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

FileDigest digest_of(const std::filesystem::path& file) {
  const MappedFile mapped(file);
  Checksum checksum;
  checksum.add(mapped.bytes());
  return {static_cast<std::int64_t>(mapped.bytes().size()), checksum.text()};
}

FileDigest sampled_digest(std::span<const std::byte> bytes) {
  constexpr std::size_t kBlocks = 64;
  constexpr std::size_t kBlockBytes = std::size_t{16} << 10;
  Checksum checksum;
  if (bytes.size() <= kBlocks * kBlockBytes) {
    checksum.add(bytes);
  } else {
    const std::size_t last = bytes.size() - kBlockBytes;
    const std::size_t stride = last / (kBlocks - 1);
    for (std::size_t i = 0; i + 1 < kBlocks; ++i) checksum.add(bytes.subspan(i * stride, kBlockBytes));
    checksum.add(bytes.subspan(last));
  }
  return {static_cast<std::int64_t>(bytes.size()), checksum.text()};
}

}  // namespace ferry
