// SPDX-License-Identifier: Apache-2.0
// A RunConfig turned into what the parts below take.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "cli/command_line.h"
#include "config/model_config.h"
#include "data/batch_loader.h"
#include "data/token_shard.h"
#include "offload/engine.h"
#include "train/sampler.h"
#include "train/trainer.h"

namespace ferry {

/// The shape to train: `model`, else that of `init_from`. From scratch, max_position_embeddings becomes seq_len. Throws
/// Error{kConfig | kIo}; Error{kConfig} for a seq_len beyond max_position_embeddings.
ModelConfig model_of(const RunConfig& config);

/// Throws Error{kIo} for a missing file; for the built-in config the message says where the bundled text is.
std::vector<TokenSource> token_sources(const CommandLine& line, const std::vector<std::string>& paths);

SequenceOrder order_of(const RunConfig& config);

BackendOptions backend_options(const RunConfig& config);

/// Where the plan is to choose, the engine's defaults: plan_training() in training_plan.h chooses.
EngineOptions engine_options(const RunConfig& config);

/// What the model in `folder` is read as: `dtype` where it is on the line or a config file is given, else that of the
/// stored weights.
DType dtype_of(const CommandLine& line, const std::filesystem::path& folder);

SamplerOptions sampler_options(const RunConfig& config);

/// `n_sequences` of the training data turn epochs into steps.
TrainerOptions trainer_options(const RunConfig& config, const ModelConfig& model, std::int64_t n_sequences);

}  // namespace ferry
