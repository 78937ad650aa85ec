// SPDX-License-Identifier: Apache-2.0
// A tiny run and its trace.
#include "train/resumable_run.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "train/tiny_run.h"

namespace ferry::test {
namespace {

constexpr std::int64_t kSeqLen = 16;

std::vector<std::string> log_lines(const std::filesystem::path& path) {
  std::vector<std::string> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    auto json = nlohmann::ordered_json::parse(line);
    std::vector<std::string> times;
    for (const auto& item : json.items()) {
      const std::string& key = item.key();
      const bool is_time = key.ends_with("_s") || key.ends_with("_ms") || key == "seconds";
      if (is_time || key == "h2d_bytes") times.push_back(key);  // what is still in a slot is not fetched
    }
    for (const std::string& key : times) json.erase(key);
    lines.push_back(json.dump());
  }
  return lines;
}

}  // namespace

RunSpec run_spec(const std::string& name, DType dtype) {
  RunSpec spec;
  spec.name = name;
  spec.engine.dtype = dtype;
  spec.engine.batch_size = 4;
  spec.engine.seq_len = kSeqLen;
  spec.engine.vocab_chunk = 100;
  spec.engine.threads = 1;
  spec.engine.piece_bytes = 1024;
  spec.engine.adamw.weight_decay = 0.1;
  return spec;
}

std::vector<std::byte> array_bytes(Engine& engine, ParameterArray array) {
  std::vector<std::byte> bytes;
  engine.for_each_piece(array, [&](const ParameterInfo&, std::int64_t, TensorView piece) {
    if (!piece) return;
    const auto* begin = static_cast<const std::byte*>(piece.data);
    bytes.insert(bytes.end(), begin, begin + piece.size_bytes());
  });
  return bytes;
}

ResumableRun::ResumableRun(const std::filesystem::path& folder, RunSpec spec, const Checkpoint* checkpoint)
    : folder_(folder), spec_(std::move(spec)), model_(byte_config(spec_.tied)) {
  std::filesystem::create_directories(folder_);
  backend_ = create_backend("cpu", {.threads = 1});
  engine_ = std::make_unique<Engine>(*backend_, model_, spec_.engine);
  train_data_ = std::make_unique<BatchLoader>(
      sequences({40, 60}),
      BatchLoaderOptions{.batch_size = spec_.engine.max_sequences(), .order = spec_.order, .seed = 3});
  val_data_ = std::make_unique<EvaluationBatches>(sequences({10}), spec_.engine.max_sequences());
  if (checkpoint != nullptr) {
    checkpoint->restore(*engine_);
    first_step_ = checkpoint->state().trainer.step;
  } else {
    engine_->initialize(7);
  }
  metrics_ = std::make_unique<MetricsFile>(folder_ / "metrics.jsonl",
                                           checkpoint != nullptr ? checkpoint->metrics() : std::filesystem::path());
  const RunIdentity identity{.config_toml = "",
                             .ferry_version = "test",
                             .backend = "cpu",
                             .n_sequences = train_data_->sequences().n_sequences(),
                             .n_data_tokens = train_data_->sequences().n_tokens(),
                             .data_files = train_data_->sequences().fingerprints()};
  writer_ = std::make_unique<CheckpointWriter>(
      CheckpointWriterOptions{
          .folder = checkpoints(folder_), .metrics = folder_ / "metrics.jsonl", .keep_last = spec_.keep_last},
      *engine_, model_, identity);
  TrainerOptions options;
  options.schedule = {.schedule = Schedule::kCosine, .lr = 1e-2, .steps = spec_.steps, .warmup_steps = 4};
  options.log_every = 7;
  options.eval_every = spec_.eval_every;
  options.save_every = spec_.save_every;
  options.byte_vocabulary = true;
  trainer_ = std::make_unique<Trainer>(TrainerParts{.engine = *engine_,
                                                    .train_data = *train_data_,
                                                    .val_data = val_data_.get(),
                                                    .progress = progress_,
                                                    .metrics = metrics_.get(),
                                                    .checkpoints = writer_.get()},
                                       options);
  if (checkpoint != nullptr) trainer_->resume(checkpoint->state().trainer);
}

SequenceSet ResumableRun::sequences(const std::vector<int>& shards) const {
  std::vector<TokenSource> sources;
  for (const int n_sentences : shards) {
    const std::filesystem::path path = folder_ / (std::to_string(n_sentences) + ".txt");
    std::ofstream(path) << simple_text(n_sentences);
    sources.push_back({path, TokenFormat::kBytes});
  }
  return SequenceSet(sources, kSeqLen, model_.vocab_size);
}

TrainResult ResumableRun::train(std::int64_t stop_after) {
  std::int64_t step = first_step_;
  return trainer_->run([&] {
    if (step >= stop_after) return true;
    if (spec_.before_step) spec_.before_step(*engine_, step);
    ++step;
    return false;
  });
}

RunTrace ResumableRun::trace() {
  RunTrace trace;
  for (const ParameterArray array : {ParameterArray::kWeight, ParameterArray::kWeightLow, ParameterArray::kFirstMoment,
                                     ParameterArray::kSecondMoment}) {
    const std::vector<std::byte> bytes = array_bytes(*engine_, array);
    trace.arrays.insert(trace.arrays.end(), bytes.begin(), bytes.end());
  }
  trace.counts = engine_->step_counts();
  trace.state = trainer_->state();
  trace.state.elapsed_s = 0;
  if (trace.state.last_eval) trace.state.last_eval->elapsed_s = 0;
  trace.log = log_lines(folder_ / "metrics.jsonl");
  const TrainResult result = trainer_->result();
  trace.curve = loss_svg({.title = "a run", .train = result.train_curve, .val = result.val_curve});
  return trace;
}

}  // namespace ferry::test
