// SPDX-License-Identifier: Apache-2.0
// `ferry train`: checks everything first, then allocates, trains, saves, and shows what was learnt.
#include <fmt/core.h>

#include <cmath>
#include <exception>
#include <memory>
#include <optional>
#include <utility>

#include "backend/backend.h"
#include "cli/commands.h"
#include "cli/run_folder.h"
#include "cli/run_setup.h"
#include "cli/train_report.h"
#include "cli/training_plan.h"
#include "config/config_file.h"
#include "core/error.h"
#include "core/log.h"
#include "io/printable.h"
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
        folder_(config_.output, config_.log_file),
        model_(model_of(config_)),
        train_sources_(token_sources(line, config_.train_data)),
        train_data_(SequenceSet(train_sources_, config_.seq_len, model_.vocab_size),
                    {.batch_size = config_.sequences(),
                     .order = order_of(config_),
                     .seed = static_cast<std::uint64_t>(config_.data_seed)}),
        options_(trainer_options(config_, model_, train_data_.sequences().n_sequences())) {
    if (config_.val_data.empty()) return;
    val_data_.emplace(SequenceSet(token_sources(line, config_.val_data), config_.seq_len, model_.vocab_size),
                      config_.sequences());
    check_evaluation_data(*val_data_, options_.eval_tokens);  // now, not after hours of training
  }

  int run() {
    backend_ = create_backend(config_.backend, backend_options(config_));
    plan_ = plan_here(config_, model_, *backend_);
    engine_ = std::make_unique<Engine>(*backend_, model_, plan_.step->options);
    if (config_.init_from.empty()) {
      engine_->initialize(static_cast<std::uint64_t>(config_.seed));
    } else {
      load_weights(config_.init_from, model_, *engine_);
    }
    print_start();
    folder_.create(to_toml(config_));
    const InterruptGuard guard;
    MetricsFile metrics(folder_.metrics());
    std::optional<TraceFile> trace;
    if (!config_.trace.empty()) trace.emplace(config_.trace);
    metrics.write(run_metrics());
    Trainer trainer({.engine = *engine_,
                     .train_data = train_data_,
                     .val_data = val_data_ ? &*val_data_ : nullptr,
                     .progress = progress_,
                     .metrics = &metrics,
                     .trace = trace ? &*trace : nullptr},
                    options_);
    TrainResult result;
    try {
      result = trainer.run([] { return InterruptGuard::signal() != 0; });
      save(result);
      if (result.error) std::rethrow_exception(result.error);
      metrics.write(end_metrics(result, result.interrupted ? "interrupted" : "finished"));
    } catch (...) {
      write_failed(trainer.result(), metrics);
      throw;
    }
    return finish(result);
  }

 private:
  void print_start() {
    progress_.print("ferry " FERRY_VERSION);
    print_all(progress_, describe_start({.line = line_,
                                         .model = model_,
                                         .engine = *engine_,
                                         .options = plan_.step->options,
                                         .notes = plan_.notes,
                                         .backend = backend_->capabilities(),
                                         .train_data = train_data_.sequences(),
                                         .val_data = val_data_ ? &val_data_->sequences() : nullptr,
                                         .steps = options_.schedule.steps}));
    progress_.print("");
  }

  RunMetrics run_metrics() const {
    return {.ferry_version = FERRY_VERSION,
            .backend = backend_->capabilities().description,
            .dtype = to_string(config_.dtype),
            .parameters = engine_->parameters().n_parameters(),
            .steps = options_.schedule.steps,
            .batch_size = config_.sequences(),
            .seq_len = config_.seq_len,
            .train_tokens = train_data_.sequences().n_tokens(),
            .val_tokens = val_data_ ? val_data_->sequences().n_tokens() : 0};
  }

  /// A failure to save does not hide the error that ended the run.
  void save(const TrainResult& result) {
    progress_.clear();
    if (result.error) {
      log::warn("an error stopped the run after step {}, saving the weights", result.steps);
    } else if (result.interrupted) {
      log::warn("{}: stopped after step {}, saving the weights; press Ctrl-C again to quit at once",
                InterruptGuard::name(InterruptGuard::signal()), result.steps);
    }
    try {
      save_model(folder_.model(), model_, config_.dtype, *engine_);
      write_loss_svg(folder_.plot(), {.title = fmt::format("{} on {}", config_.output, config_.train_data.front()),
                                      .train = result.train_curve,
                                      .val = result.val_curve});
    } catch (const Error& error) {
      if (!result.error) throw;
      log::error("{}", error.what());
    }
  }

  int finish(const TrainResult& result) {
    progress_.print("");
    print_all(progress_, describe_end(result, folder_, has_byte_vocabulary(model_)));
    if (result.interrupted) return 128 + InterruptGuard::signal();
    if (config_.sample_tokens > 0 && has_byte_vocabulary(model_)) print_sample();
    return 0;
  }

  /// While an exception is on its way: a line that cannot be written must not replace it.
  static void write_failed(const TrainResult& result, MetricsFile& metrics) noexcept {
    try {
      metrics.write(end_metrics(result, "failed"));
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
  const RunConfig& config_;
  Progress progress_;
  RunFolder folder_;
  ModelConfig model_;
  std::vector<TokenSource> train_sources_;
  BatchLoader train_data_;
  TrainerOptions options_;
  std::optional<EvaluationBatches> val_data_;
  std::unique_ptr<Backend> backend_;
  TrainingPlan plan_;
  std::unique_ptr<Engine> engine_;  // after the backend, so that it goes first
};

}  // namespace

int run_train(const CommandLine& line) {
  if (line.config.quiet) log::set_level(log::Level::kWarn);
  if (!line.config.log_file.empty()) log::set_file(line.config.log_file);
  return TrainRun(line).run();
}

}  // namespace ferry
