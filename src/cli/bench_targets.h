// SPDX-License-Identifier: Apache-2.0
// The targets of `ferry bench`, and what they share.
#pragma once

#include <memory>
#include <string>

#include "backend/backend.h"
#include "cli/command_line.h"
#include "config/model_config.h"

namespace ferry {

/// To stdout at once: a benchmark takes a while.
void print_line(const std::string& line);
void print_line(const char* label, const std::string& text);

/// Throws Error{kConfig} where the line names none.
ModelConfig bench_model(const CommandLine& line);
/// Says which.
std::unique_ptr<Backend> bench_backend(const CommandLine& line);

/// Each prints its table.
void bench_all_ops(const CommandLine& line);
void bench_training_steps(const CommandLine& line);
void bench_floor(const CommandLine& line);
void bench_optimizer(const CommandLine& line);
/// Writes a rates file too, where the line names one.
void bench_whole_machine(const CommandLine& line);

}  // namespace ferry
