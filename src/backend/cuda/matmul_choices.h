// SPDX-License-Identifier: Apache-2.0
// Which algorithm each matrix product takes, kept in a text file so that runs repeat each other's bits.
#pragma once

#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <string>

namespace ferry::cuda {

/// FERRY_MATMUL_CACHE, else ferry/matmul_choices.txt in XDG_CACHE_HOME or ~/.cache; empty without a home: nothing is
/// kept.
std::filesystem::path default_choices_file();

/// Choices are found by machine (device and library version) and product; the file holds those of several machines. One
/// line each: machine, product, choice, separated by tabs. Any thread may call.
class MatmulChoices {
 public:
  /// Reads `file` where it exists. One that cannot be understood is ignored with a warning, and moved to `file`.old
  /// when the first choice is kept. An empty `file` keeps choices in memory alone.
  MatmulChoices(std::filesystem::path file, std::string machine);

  std::optional<std::string> find(const std::string& product) const;

  /// Keeps a choice for a product that has none; one that another process has stored since goes first. Returns the
  /// choice that holds. The file is replaced as a whole, by rename; where that fails, a warning says so once.
  std::string keep(const std::string& product, const std::string& choice);

  /// Forgets what the file says about a product, so that keep replaces it.
  void forget(const std::string& product);

 private:
  using Key = std::pair<std::string, std::string>;  // machine, product
  using Table = std::map<Key, std::string>;

  static std::optional<Table> parse(const std::string& text);
  /// What the file holds now; nullopt when it cannot be understood; empty without a file.
  std::optional<Table> read() const;
  void write();
  bool replace_file();

  const std::filesystem::path file_;
  const std::string machine_;
  mutable std::mutex mutex_;
  Table table_;                // guarded by mutex_
  Table forgotten_;            // guarded by mutex_: entries of the file that no longer count
  bool set_aside_ = false;     // guarded by mutex_: the file cannot be understood
  bool write_failed_ = false;  // guarded by mutex_
};

}  // namespace ferry::cuda
