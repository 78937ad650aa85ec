// SPDX-License-Identifier: Apache-2.0
// Runs the script of a random configuration and tells what it left behind.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "offload/random_config.h"

namespace ferry::test {

/// Results by name, to the bit.
using Bits = std::map<std::string, std::vector<std::byte>>;

struct RunResult {
  Bits bits;
  double first_loss = 0;
  double first_norm = 0;
  std::string fault;  // of memory or bytes moved, against the plan; empty = none
};

/// Trains as `config.script` says, with `options`, which differ from config.options in nothing that the script needs.
RunResult run_script(Backend& backend, const RandomConfig& config, const EngineOptions& options);

/// The name of a result that differs; empty when all are equal.
std::string difference(const Bits& got, const Bits& want);

}  // namespace ferry::test
