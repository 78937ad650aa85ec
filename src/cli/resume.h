// SPDX-License-Identifier: Apache-2.0
// From `resume` to a checkpoint, and whether this run may go on from it.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "backend/backend.h"
#include "cli/run_folder.h"
#include "config/model_config.h"
#include "config/run_config.h"
#include "data/sequence_set.h"
#include "offload/step_plan.h"
#include "train/checkpoint.h"
#include "train/trainer.h"

namespace ferry {

/// The checkpoint that `resume` asks for, every byte of it verified; nothing where the run starts anew. With `auto` a
/// damaged one is a warning, and the one before it is taken. `config_file` may be empty. `say` gets what is being done.
/// Throws Error{kIo}: no checkpoint at a path, a damaged one, or with `auto` checkpoints of which none is whole, or
/// none in `output` but some beside `config_file`, whose folder was moved.
std::optional<Checkpoint> find_checkpoint(const RunConfig& config, const std::filesystem::path& config_file,
                                          const std::function<void(const std::string&)>& say);

/// Whether the checkpoint is one of the run folder `output`.
bool is_of_run(const Checkpoint& checkpoint, const std::filesystem::path& output);

/// What this run would train with.
struct ResumedRun {
  const ModelConfig& model;
  const SequenceSet& train_data;
  const ScheduleOptions& schedule;
};
/// Refuses what would change a bit of the run: Error{kConfig} names the key, or the file of data, and both values. Then
/// `config` takes over what the plan chose for the checkpoint and what decides the order of sums: mlp_chunk and
/// vocab_chunk.
void adopt_checkpoint(const Checkpoint& checkpoint, const ResumedRun& run, RunConfig& config);

/// A warning when the checkpoint comes from another backend.
void warn_of_other_backend(const Checkpoint& checkpoint, const Backend& backend);

/// `config` with everything chosen that decides a bit, for its checkpoints.
RunIdentity run_identity(const RunConfig& config, const StepPlan& plan, const ResumedRun& run, const Backend& backend,
                         const std::string& ferry_version);

/// Bytes of weights and optimizer state.
std::size_t checkpoint_bytes(const ParameterArrays& arrays);

/// "ferry train out/config.toml --resume auto"
std::string resume_command(const RunFolder& folder);

}  // namespace ferry
