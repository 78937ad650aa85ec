// SPDX-License-Identifier: Apache-2.0
// A tiny training run that can be stopped and gone on with, and everything that it leaves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "offload/engine.h"
#include "temp_file.h"
#include "train/checkpoint_writer.h"
#include "train/trainer.h"

namespace ferry::test {

/// What a run is made of.
struct RunSpec {
  std::string name;
  EngineOptions engine;
  bool tied = true;
  SequenceOrder order = SequenceOrder::kSequential;
  std::int64_t steps = 60;
  std::int64_t save_every = 0;
  std::int64_t keep_last = 1000;
  std::int64_t eval_every = 0;
  /// Before step i (0, 1, ...), for what happens to a run from outside.
  std::function<void(Engine&, std::int64_t)> before_step;
};

RunSpec run_spec(const std::string& name, DType dtype);

/// Everything that must be equal after a resume.
struct RunTrace {
  std::vector<std::byte> arrays;  // weights, low halves and moments of every parameter
  StepCounts counts;
  TrainerState state;            // without its time
  std::vector<std::string> log;  // lines of the metrics without times and speeds
  std::string curve;             // as SVG

  bool operator==(const RunTrace&) const = default;
};

/// One process' life of a run in `folder`.
class ResumableRun {
 public:
  /// Goes on from `checkpoint` where there is one.
  ResumableRun(const std::filesystem::path& folder, RunSpec spec, const Checkpoint* checkpoint = nullptr);

  /// Trains until `stop_after` steps are done, or to the end.
  TrainResult train(std::int64_t stop_after = INT64_MAX);
  RunTrace trace();
  Engine& engine() { return *engine_; }
  const ModelConfig& model() const { return model_; }

  static std::filesystem::path checkpoints(const std::filesystem::path& folder) { return folder / "checkpoints"; }

 private:
  SequenceSet sequences(const std::vector<int>& shards) const;

  std::filesystem::path folder_;
  RunSpec spec_;
  ModelConfig model_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<BatchLoader> train_data_;
  std::unique_ptr<EvaluationBatches> val_data_;
  Progress progress_{stderr, Progress::Mode::kQuiet};
  std::unique_ptr<MetricsFile> metrics_;
  std::unique_ptr<CheckpointWriter> writer_;
  std::unique_ptr<Trainer> trainer_;
  std::int64_t first_step_ = 0;
};

/// Bytes of one array of every parameter that keeps it.
std::vector<std::byte> array_bytes(Engine& engine, ParameterArray array);

}  // namespace ferry::test
