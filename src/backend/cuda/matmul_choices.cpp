// SPDX-License-Identifier: Apache-2.0
// The file of matrix product choices: parsed strictly, since it decides what runs, and replaced by rename.
#include "backend/cuda/matmul_choices.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <utility>

#include "core/error.h"
#include "core/log.h"

namespace ferry::cuda {
namespace {

constexpr const char* kHead = "# ferry matmul choices 1";
// A thousand times what a run writes; a larger file is not ours.
constexpr std::uintmax_t kMaxFileBytes = std::uintmax_t{16} << 20;

std::string from_environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool printable(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; });
}

}  // namespace

std::filesystem::path default_choices_file() {
  if (const std::string file = from_environment("FERRY_MATMUL_CACHE"); !file.empty()) return file;
  std::filesystem::path folder = from_environment("XDG_CACHE_HOME");
  if (folder.empty()) {
    const std::string home = from_environment("HOME");
    if (home.empty()) return {};
    folder = std::filesystem::path(home) / ".cache";
  }
  return folder / "ferry" / "matmul_choices.txt";
}

MatmulChoices::MatmulChoices(std::filesystem::path file, std::string machine)
    : file_(std::move(file)), machine_(std::move(machine)) {
  FERRY_ASSERT(printable(machine_));
  std::optional<Table> table = read();
  if (table) {
    table_ = std::move(*table);
  } else {
    set_aside_ = true;
    log::warn("{} is not a file of matrix product choices: it is ignored, products are timed again", file_.string());
  }
}

std::optional<std::string> MatmulChoices::find(const std::string& product) const {
  const std::scoped_lock lock(mutex_);
  const auto found = table_.find({machine_, product});
  return found == table_.end() ? std::nullopt : std::optional(found->second);
}

std::string MatmulChoices::keep(const std::string& product, const std::string& choice) {
  FERRY_ASSERT(printable(product) && printable(choice));
  const std::scoped_lock lock(mutex_);
  const Key key{machine_, product};
  table_[key] = choice;
  if (file_.empty()) return choice;
  if (const std::optional<Table> now = read(); now && !set_aside_) {
    for (const auto& [other, stored] : *now) {
      const auto out = forgotten_.find(other);
      if (out == forgotten_.end() || out->second != stored) table_[other] = stored;
    }
  } else {
    set_aside_ = true;
  }
  write();
  return table_[key];
}

void MatmulChoices::forget(const std::string& product) {
  const std::scoped_lock lock(mutex_);
  const auto found = table_.find({machine_, product});
  if (found != table_.end()) forgotten_.insert(table_.extract(found));
}

std::optional<MatmulChoices::Table> MatmulChoices::parse(const std::string& text) {
  std::istringstream lines(text);
  std::string line;
  if (!std::getline(lines, line) || line != kHead) return std::nullopt;
  Table table;
  while (std::getline(lines, line)) {
    const std::size_t first = line.find('\t');
    const std::size_t second = first == std::string::npos ? first : line.find('\t', first + 1);
    if (second == std::string::npos) return std::nullopt;
    const Key key{line.substr(0, first), line.substr(first + 1, second - first - 1)};
    const std::string choice = line.substr(second + 1);
    if (!printable(key.first) || !printable(key.second) || !printable(choice)) return std::nullopt;
    table.emplace(key, choice);
  }
  return table;
}

std::optional<MatmulChoices::Table> MatmulChoices::read() const {
  std::error_code error;
  if (file_.empty() || !std::filesystem::exists(file_, error)) return Table{};
  const std::uintmax_t size_bytes = std::filesystem::file_size(file_, error);  // fails for a folder
  if (error || size_bytes > kMaxFileBytes) return std::nullopt;
  std::ifstream stream(file_, std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(stream), {});
  return stream.bad() || text.size() != size_bytes ? std::nullopt : parse(text);
}

bool MatmulChoices::replace_file() {
  std::error_code error;
  if (!file_.parent_path().empty()) std::filesystem::create_directories(file_.parent_path(), error);
  if (set_aside_) {
    if (!std::filesystem::is_regular_file(file_, error)) return false;  // a folder stays where it is
    std::filesystem::rename(file_, file_.string() + ".old", error);
    if (error) return false;
    set_aside_ = false;
  }
  const std::filesystem::path temporary = fmt::format("{}.{}", file_.string(), getpid());
  std::ofstream stream(temporary, std::ios::binary);
  stream << kHead << '\n';
  for (const auto& [key, choice] : table_) stream << key.first << '\t' << key.second << '\t' << choice << '\n';
  stream.close();
  if (stream.good()) std::filesystem::rename(temporary, file_, error);
  if (stream.good() && !error) return true;
  std::filesystem::remove(temporary, error);
  return false;
}

void MatmulChoices::write() {
  if (replace_file() || std::exchange(write_failed_, true)) return;
  log::warn(
      "cannot write {}: matrix products are timed again in the next run, whose results may differ in the last bits; "
      "set FERRY_MATMUL_CACHE to a file that can be written",
      file_.string());
}

}  // namespace ferry::cuda
