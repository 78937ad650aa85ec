// SPDX-License-Identifier: Apache-2.0
// What a plan says to people: the model, what lives where, memory by purpose, bytes moved.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/text_report.h"
#include "cli/training_plan.h"
#include "config/model_config.h"
#include "config/run_config.h"
#include "data/sequence_set.h"
#include "offload/engine.h"
#include "offload/step_plan.h"

namespace ferry {

/// "955,776 parameters in bf16: 5 layers of width 128, 4 heads (2 key/value), vocabulary 256, tied"
std::string describe_model(const ModelConfig& model, std::int64_t n_parameters, DType dtype);

/// "a.bin and 2 more: 1,000 tokens, 15 sequences of 64"
std::string describe_data(const std::vector<std::string>& paths, const SequenceSet& data);

/// What computes the attention of a training step, and why that.
std::string describe_attention(const EngineOptions& options, const ModelConfig& model, const ScratchSizes& backend);

/// What travels and what stays: segments, residuals, activations, slots, cuts.
std::string describe_offload(const EngineOptions& options, std::int64_t n_layers);

/// Two columns: device and host memory by purpose, largest first, each with its sum.
std::vector<std::string> memory_table(const std::vector<MemoryLine>& device, const std::vector<MemoryLine>& host);

/// "weights 4.54 GiB, tokens 160 KiB"
std::string list_of(const std::vector<MemoryLine>& lines);

/// Milliseconds of a step to expect; none where the rates are an H200 machine's and the backend is no device.
std::optional<double> expected_step_ms(const TrainingPlan& plan, bool is_device);

/// The same, what bounds it, and by which rates; or nothing.
void add_expected(TextReport& text, const TrainingPlan& plan, bool is_device);

/// Bytes of one step: each way over the bus, and AdamW's.
void add_traffic(TextReport& text, const StepPlan& plan);

}  // namespace ferry
