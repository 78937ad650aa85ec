// SPDX-License-Identifier: Apache-2.0
// Save, then prune: an older checkpoint goes only when a newer one is there.
#include "train/checkpoint_writer.h"

#include <fmt/core.h>

#include "core/error.h"
#include "io/posix_file.h"
#include "train/checkpoint_store.h"

namespace ferry {

CheckpointWriter::CheckpointWriter(CheckpointWriterOptions options, Engine& engine, const ModelConfig& model,
                                   RunIdentity run)
    : options_(std::move(options)), engine_(engine), model_(model), run_(std::move(run)) {
  FERRY_CHECK(options_.keep_last >= 1, kConfig, "keep_last is {}: expected 1 or more", options_.keep_last);
  tidy_checkpoints(options_.folder);
}

SaveMetrics CheckpointWriter::save(const TrainerState& state, bool planned) {
  const std::filesystem::path folder = options_.folder / checkpoint_name(state.step);
  const DType dtype = engine_.dtype_of(ParameterArray::kWeight, engine_.parameters().parameters().front()).value();
  try {
    const SaveMetrics saved = save_checkpoint(folder, {.engine = engine_,
                                                       .model = model_,
                                                       .dtype = dtype,
                                                       .run = run_,
                                                       .trainer = state,
                                                       .metrics = options_.metrics,
                                                       .planned = planned});
    if (!last_) sync_to_disk(options_.folder.parent_path());  // the folder of checkpoints may be new
    last_ = folder;
    prune_checkpoints(options_.folder, state.step, options_.keep_last);
    return saved;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kIo) throw;
    detail::throw_error(
        ErrorKind::kIo,
        fmt::format(
            "the checkpoint of step {} could not be saved, older ones are untouched: {}; when the disk is full, "
            "free space or lower keep_last, then resume from the newest with --resume auto",
            state.step, error.what()));
  }
}

}  // namespace ferry
