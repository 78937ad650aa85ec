// SPDX-License-Identifier: Apache-2.0
// The file that `ferry bench machine` writes and plans are made by: measured rates, and of which machine.
#pragma once

#include <filesystem>
#include <string>

#include "offload/machine_rates.h"

namespace ferry {

struct RatesFile {
  MachineRates rates;
  std::string backend;      // "cuda"
  std::string description;  // of its device
  std::string date;         // "2026-11-30"
  int threads = 1;          // of AdamW

  bool operator==(const RatesFile&) const = default;
};

/// One JSON object, a key a line.
std::string to_json(const RatesFile& file);

/// Believes nothing: every key is there once, of its type and in its range. Throws Error{kIo} with the file, the key,
/// what it holds and what is expected.
RatesFile read_rates_file(const std::filesystem::path& path);

/// Today in UTC, as in RatesFile.
std::string today();

}  // namespace ferry
