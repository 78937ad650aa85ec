// SPDX-License-Identifier: Apache-2.0
// Names that transformers knows.
#include "train/companion_files.h"

#include <algorithm>
#include <array>

#include "io/atomic_file.h"
#include "io/mapped_file.h"

namespace ferry {
namespace {

namespace fs = std::filesystem;

/// What transformers reads beside weights and config.json.
constexpr std::array kCompanions = {"generation_config.json",
                                    "tokenizer.json",
                                    "tokenizer_config.json",
                                    "special_tokens_map.json",
                                    "added_tokens.json",
                                    "tokenizer.model",
                                    "chat_template.jinja",
                                    "chat_template.json",
                                    "vocab.json",
                                    "merges.txt"};

}  // namespace

std::vector<std::string> copy_companion_files(const fs::path& from, const fs::path& to) {
  std::vector<std::string> copied;
  for (const char* name : kCompanions) {
    std::error_code failure;
    if (!fs::exists(from / name, failure)) continue;
    const MappedFile file(from / name);
    const auto bytes = file.bytes();
    write_file_atomically(to / name, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    copied.emplace_back(name);
  }
  return copied;
}

bool is_companion_file(std::string_view name) { return std::ranges::find(kCompanions, name) != kCompanions.end(); }

}  // namespace ferry
