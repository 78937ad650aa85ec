// SPDX-License-Identifier: Apache-2.0
// `ferry train`: checks everything first, then allocates, trains, saves, and shows what was learnt.
#include <fmt/core.h>

#include <cmath>
#include <exception>
#include <memory>
#include <optional>

#include "backend/backend.h"
#include "cli/commands.h"
#include "cli/output_files.h"
#include "cli/plan_report.h"
#include "cli/resume.h"
#include "cli/run_folder.h"
#include "cli/run_setup.h"
#include "cli/train_report.h"
#include "cli/training_plan.h"
#include "config/config_file.h"
#include "core/error.h"
#include "core/log.h"
#include "io/printable.h"
#include "train/checkpoint_store.h"
#include "train/checkpoint_writer.h"
#include "train/companion_files.h"
#include "train/generation.h"
#include "train/interrupt.h"
#include "train/loss_plot.h"
#include "train/metrics.h"
#include "train/progress.h"
#include "train/sampler.h"
#include "train/trace_file.h"
#include "train/trainer.h"
#include "train/weights_io.h"

namespace ferry {
namespace {

void print_all(Progress& progress, const std::vector<std::string>& lines) {
  for (const std::string& line : lines) progress.print(line);
}

/// One training run, from open files to saved weights.
class TrainRun {
 public:
  explicit TrainRun(const CommandLine& line)
      : line_(line),
        config_(line.config),
        progress_(stdout, Progress::mode_for(stdout, line.config.quiet)),
        checkpoint_(
            find_checkpoint(config_, line.config_source, [this](const std::string& text) { progress_.print(text); })),
        folder_(config_.output, config_.log_file, use_of_folder()),
        model_(model_of(config_)),
        train_sources_(token_sources(line, config_.train_data)),
        train_data_(SequenceSet(train_sources_, config_.seq_len, model_.vocab_size),
                    {.batch_size = config_.sequences(),
                     .order = order_of(config_),
                     .seed = static_cast<std::uint64_t>(config_.data_seed)}),
        options_(trainer_options(config_, model_, train_data_.sequences().n_sequences())) {
    train_data_.sequences().check_any_target("train_data");
    if (checkpoint_) adopt_checkpoint(*checkpoint_, resumed_run(), config_);
    if (config_.val_data.empty()) return;
    val_data_.emplace(SequenceSet(token_sources(line, config_.val_data), config_.seq_len, model_.vocab_size),
                      config_.sequences());
    check_evaluation_data(*val_data_, options_.eval_tokens);  // now, not after hours of training
  }

  int run() {
    backend_ = create_backend(config_.backend, backend_options(config_));
    plan_ = plan_here(config_, model_, *backend_);
    check_space();
    engine_ = std::make_unique<Engine>(*backend_, model_, plan_.step->options);
    set_weights();
    print_start();
    folder_.create(config_text());
    InterruptGuard guard("\nfinishing the step, then saving a checkpoint; press Ctrl-C again to quit at once\n");
    const std::filesystem::path begun = checkpoint_ ? checkpoint_->metrics() : std::filesystem::path();
    MetricsFile metrics(folder_.metrics(), begun);
    std::optional<TraceFile> trace;
    if (!config_.trace.empty()) trace.emplace(config_.trace);
    if (begun.empty()) metrics.write(run_metrics());
    CheckpointWriter checkpoints(
        {.folder = folder_.checkpoints(), .metrics = folder_.metrics(), .keep_last = config_.keep_last}, *engine_,
        model_, run_identity(config_, *plan_.step, resumed_run(), *backend_, FERRY_VERSION));
    Trainer trainer({.engine = *engine_,
                     .train_data = train_data_,
                     .val_data = val_data_ ? &*val_data_ : nullptr,
                     .progress = progress_,
                     .metrics = &metrics,
                     .trace = trace ? &*trace : nullptr,
                     .checkpoints = &checkpoints},
                    options_);
    if (checkpoint_) trainer.resume(checkpoint_->state().trainer);
    TrainResult result;
    try {
      result = trainer.run([] { return InterruptGuard::signal() != 0; });
      guard.answer_with("\nending the run; press Ctrl-C again to quit at once\n");
      save(result, checkpoints.last());
      if (result.error) std::rethrow_exception(result.error);
      metrics.write(end_metrics(result, result.interrupted ? "interrupted" : "finished"));
    } catch (...) {
      write_failed(trainer.result(), metrics);
      throw;
    }
    return finish(result);
  }

 private:
  RunFolder::Use use_of_folder() const {
    const bool goes_on = checkpoint_ && is_of_run(*checkpoint_, config_.output);
    return goes_on ? RunFolder::Use::kResumed : RunFolder::Use::kNew;
  }

  ResumedRun resumed_run() const {
    return {.model = model_, .train_data = train_data_.sequences(), .schedule = options_.schedule};
  }

  /// What a resumed run is started with, wherever it began.
  std::string config_text() const {
    RunConfig config = config_;
    config.resume = "none";
    return to_toml(config);
  }

  void check_space() const {
    const ParameterArrays& arrays = plan_.step->arrays;
    const std::size_t model_bytes = arrays.size_bytes(ParameterArray::kWeight, Home::kHost) +
                                    arrays.size_bytes(ParameterArray::kWeight, Home::kDevice);
    if (config_.save_every == 0) return check_model_space(config_.output, model_bytes);
    check_checkpoint_space(config_.output, config_.keep_last, checkpoint_bytes(arrays), model_bytes);
  }

  void set_weights() {
    if (checkpoint_) {
      warn_of_other_backend(*checkpoint_, *backend_);
      checkpoint_->restore(*engine_);
    } else if (config_.init_from.empty()) {
      engine_->initialize(static_cast<std::uint64_t>(config_.seed));
    } else {
      load_weights(config_.init_from, model_, *engine_);
    }
  }

  void print_start() {
    progress_.print("ferry " FERRY_VERSION);
    print_all(progress_, describe_start({.line = line_,
                                         .model = model_,
                                         .engine = *engine_,
                                         .plan = plan_,
                                         .backend = *backend_,
                                         .train_data = train_data_.sequences(),
                                         .val_data = val_data_ ? &val_data_->sequences() : nullptr,
                                         .steps = options_.schedule.steps,
                                         .resumed = checkpoint_ ? &*checkpoint_ : nullptr}));
    progress_.print("");
  }

  std::optional<double> expected_ms() const { return expected_step_ms(plan_, backend_->capabilities().is_device); }

  RunMetrics run_metrics() const {
    return {.ferry_version = FERRY_VERSION,
            .backend = backend_->capabilities().description,
            .dtype = to_string(config_.dtype),
            .parameters = engine_->parameters().n_parameters(),
            .steps = options_.schedule.steps,
            .batch_size = config_.sequences(),
            .seq_len = config_.seq_len,
            .train_tokens = train_data_.sequences().n_tokens(),
            .val_tokens = val_data_ ? val_data_->sequences().n_tokens() : 0,
            .expected_step_ms = expected_ms()};
  }

  /// The loss curve, and the final weights of a run that reached its end. A failure to save does not hide the error
  /// that ended the run.
  void save(const TrainResult& result, const std::optional<std::filesystem::path>& checkpoint) {
    progress_.clear();
    const bool finished = !result.error && !result.interrupted;
    weights_ = finished ? folder_.model() : checkpoint.value_or("");
    if (!finished) say_how_to_go_on(result, checkpoint.has_value());
    try {
      if (finished) save_model(folder_.model(), model_, config_.dtype, *engine_);
      if (finished && !config_.init_from.empty()) copy_companion_files(config_.init_from, folder_.model());
      write_loss_svg(folder_.plot(), {.title = fmt::format("{} on {}", config_.output, config_.train_data.front()),
                                      .train = result.train_curve,
                                      .val = result.val_curve});
    } catch (const Error& error) {
      if (!result.error) throw;
      log::error("{}", error.what());
    }
  }

  void say_how_to_go_on(const TrainResult& result, bool saved) const {
    const std::string cause = result.error ? "an error" : InterruptGuard::name(InterruptGuard::signal());
    // What was resumed is still there, in this folder or another.
    const bool in_folder = saved || use_of_folder() == RunFolder::Use::kResumed;
    log::warn("{}: stopped after step {}{}", cause, result.steps,
              in_folder ? fmt::format("; to go on: {}", resume_command(folder_)) : ", nothing new is saved");
  }

  int finish(const TrainResult& result) {
    progress_.print("");
    print_all(progress_, describe_end({.result = result,
                                       .folder = folder_,
                                       .weights = weights_,
                                       .byte_vocabulary = has_byte_vocabulary(model_),
                                       .expected_step_ms = expected_ms()}));
    if (result.interrupted) return 128 + InterruptGuard::signal();
    if (config_.sample_tokens > 0 && has_byte_vocabulary(model_)) print_sample();
    return 0;
  }

  /// While an exception is on its way: a line that cannot be written must not replace it.
  void write_failed(const TrainResult& result, MetricsFile& metrics) const noexcept {
    try {
      metrics.write(end_metrics(result, "failed"));
      const std::vector<StoredCheckpoint> stored = list_checkpoints(folder_.checkpoints());
      if (!stored.empty()) log::warn("the newest checkpoint is '{}'", printable_name(stored.back().folder.string()));
    } catch (const std::exception& error) {
      log::warn("{}", error.what());
    }
  }

  static EndMetrics end_metrics(const TrainResult& result, const char* status) {
    EndMetrics end{.status = status,
                   .step = result.steps,
                   .tokens = result.tokens,
                   .skipped_steps = result.skipped_steps,
                   .loss = {},
                   .val_loss = {},
                   .tokens_per_s = result.tokens_per_s,
                   .elapsed_s = result.elapsed_s};
    if (std::isfinite(result.loss)) end.loss = result.loss;
    if (result.last_eval) end.val_loss = result.last_eval->val_loss;
    return end;
  }

  void print_sample() {
    std::string sample;
    generate(extend_without_cache(*engine_, config_.seq_len), byte_prompt(config_.sample_prompt),
             {.n_tokens = config_.sample_tokens, .end_ids = {}, .sampler = sampler_options(config_)},
             [&](std::int32_t byte) {
               sample.push_back(static_cast<char>(byte));
               return InterruptGuard::signal() == 0;
             });
    const WordShare share = share_of_known_words(sample, words_of(train_sources_));
    progress_.print(fmt::format("\nsample at temperature {:g}:\n{}\n", config_.temperature, printable_text(sample)));
    progress_.print(fmt::format("sample: {} of {} words occur in the text", share.n_known, share.n_words));
  }

  const CommandLine& line_;
  RunConfig config_;  // the line's; a checkpoint adds to it
  Progress progress_;
  std::optional<Checkpoint> checkpoint_;  // to go on from
  RunFolder folder_;
  ModelConfig model_;
  std::vector<TokenSource> train_sources_;
  BatchLoader train_data_;
  TrainerOptions options_;
  std::optional<EvaluationBatches> val_data_;
  std::unique_ptr<Backend> backend_;
  TrainingPlan plan_;
  std::filesystem::path weights_;   // where they were saved
  std::unique_ptr<Engine> engine_;  // after the backend, so that it goes first
};

}  // namespace

int run_train(const CommandLine& line) {
  check_output_files(line);
  if (line.config.quiet) log::set_level(log::Level::kWarn);
  if (!line.config.log_file.empty()) log::set_file(line.config.log_file);
  return TrainRun(line).run();
}

}  // namespace ferry
