// SPDX-License-Identifier: Apache-2.0
// Plain translation between option values and the parts' own options.
#include "cli/run_setup.h"

#include <algorithm>
#include <system_error>

#include "config/config_file.h"
#include "config/embedded_default.h"
#include "config/option_value.h"
#include "config/presets.h"
#include "core/error.h"
#include "io/printable.h"
#include "train/stored_weights.h"

namespace ferry {
namespace {

Schedule schedule_of(RunConfig::Schedule schedule) {
  switch (schedule) {
    case RunConfig::Schedule::kConstant: return Schedule::kConstant;
    case RunConfig::Schedule::kLinear: return Schedule::kLinear;
    case RunConfig::Schedule::kCosine: return Schedule::kCosine;
    case RunConfig::Schedule::kWsd: return Schedule::kWsd;
  }
  return Schedule::kConstant;
}

TokenFormat format_of(RunConfig::DataFormat format) {
  switch (format) {
    case RunConfig::DataFormat::kAuto: return TokenFormat::kAuto;
    case RunConfig::DataFormat::kShard: return TokenFormat::kShard;
    case RunConfig::DataFormat::kU16: return TokenFormat::kRawU16;
    case RunConfig::DataFormat::kU32: return TokenFormat::kRawU32;
    case RunConfig::DataFormat::kBytes: return TokenFormat::kBytes;
  }
  return TokenFormat::kAuto;
}

Offload offload_of(RunConfig::Offload offload) {
  switch (offload) {
    case RunConfig::Offload::kAll: return Offload::kAll;
    case RunConfig::Offload::kLayers: return Offload::kLayers;
    case RunConfig::Offload::kNone: return Offload::kNone;
  }
  return Offload::kAll;
}

OptimizerState optimizer_state_of(RunConfig::OptimizerState state) {
  switch (state) {
    case RunConfig::OptimizerState::kF32: return OptimizerState::kF32;
    case RunConfig::OptimizerState::kMixed: return OptimizerState::kMixed;
    case RunConfig::OptimizerState::kBf16: return OptimizerState::kBf16;
  }
  return OptimizerState::kF32;
}

AttentionChoice attention_of(RunConfig::Attention attention) {
  switch (attention) {
    case RunConfig::Attention::kAuto: return AttentionChoice::kAuto;
    case RunConfig::Attention::kCudnn: return AttentionChoice::kCudnn;
    case RunConfig::Attention::kFerry: return AttentionChoice::kFerry;
  }
  return AttentionChoice::kAuto;
}

Rounding rounding_of(RunConfig::Rounding rounding) {
  return rounding == RunConfig::Rounding::kNearest ? Rounding::kNearest : Rounding::kStochastic;
}

/// Whether the built-in config, not the user, names this file.
bool is_built_in(const CommandLine& line, const std::string& path) {
  if (!line.config_source.starts_with("built-in")) return false;
  RunConfig built_in;
  read_config_text(embedded_default_config(), line.config_source, built_in);
  const auto names = [&path](const std::vector<std::string>& paths) { return std::ranges::count(paths, path) > 0; };
  return names(built_in.train_data) || names(built_in.val_data);
}

std::int64_t steps_of(const RunConfig& config, std::int64_t n_sequences) {
  if (config.steps > 0) return config.steps;
  FERRY_CHECK(n_sequences <= INT64_MAX / config.epochs - config.sequences(), kConfig,
              "epochs = {} of {} sequences is more than can be counted: lower it", config.epochs, n_sequences);
  return (config.epochs * n_sequences + config.sequences() - 1) / config.sequences();
}

void set_recompute(const std::string& text, EngineOptions& options) {
  const CountedWord value = parse_counted(text);
  options.keep_layers = value.count;
  if (value.word == "full") options.recompute = Recompute::kFull;
  if (value.word == "none") options.recompute = Recompute::kNone;
}

MlpCut mlp_cut_of(const std::string& text) {
  const CountedWord value = parse_counted(text);
  if (value.word == "tokens") return {MlpCut::By::kTokens, value.count};
  if (value.word == "features") return {MlpCut::By::kFeatures, value.count};
  return {};
}

void set_head(const std::string& text, EngineOptions& options) {
  const CountedWord value = parse_counted(text);
  options.head_tokens = value.count;
  if (value.word == "logits") options.head = HeadMode::kLogits;
  if (value.word == "tokens") options.head = HeadMode::kTokens;
}

}  // namespace

ModelConfig model_of(const RunConfig& config) {
  ModelConfig model = config.model.empty() ? load_stored_config(config.init_from) : resolve_model(config.model);
  FERRY_CHECK(config.seq_len <= model.max_position_embeddings, kConfig,
              "seq_len = {} is longer than the model allows: its max_position_embeddings is {}", config.seq_len,
              model.max_position_embeddings);
  // A model trained from scratch has seen no position beyond seq_len; its config.json says so to whoever runs it.
  if (config.init_from.empty()) model.max_position_embeddings = config.seq_len;
  return model;
}

std::vector<TokenSource> token_sources(const CommandLine& line, const std::vector<std::string>& paths) {
  std::vector<TokenSource> sources;
  for (const std::string& path : paths) {
    sources.push_back({path, format_of(line.config.data_format)});
    std::error_code error;
    if (std::filesystem::exists(sources.back().path, error)) continue;
    const std::string shown = printable_name(sources.back().path.string());
    const std::string here = printable_name(std::filesystem::current_path(error).string());
    FERRY_CHECK(!is_built_in(line, path), kIo,
                "the built-in config reads '{}', which is not in '{}': run ferry in the folder of its source code, or "
                "give texts of your own with --train-data and --val-data",
                shown, here);
    FERRY_CHECK(false, kIo, "data file '{}' does not exist (looked in '{}')", shown, here);
  }
  return sources;
}

SequenceOrder order_of(const RunConfig& config) {
  return config.order == RunConfig::Order::kShuffled ? SequenceOrder::kShuffled : SequenceOrder::kSequential;
}

BackendOptions backend_options(const RunConfig& config) {
  return {.threads = static_cast<int>(config.threads),
          .device = static_cast<int>(config.device),
          .attention = attention_of(config.attention)};
}

EngineOptions engine_options(const RunConfig& config) {
  EngineOptions options;
  options.dtype = config.dtype;
  options.batch_size = config.batch_size;
  options.accumulate = config.accumulate;
  options.seq_len = config.seq_len;
  options.adamw = {.beta1 = config.beta1,
                   .beta2 = config.beta2,
                   .eps = config.eps,
                   .weight_decay = config.weight_decay,
                   .rounding = rounding_of(config.rounding),
                   .seed = static_cast<std::uint64_t>(config.seed)};
  options.decay_embeddings = config.decay_embeddings;
  options.grad_clip = config.grad_clip;
  options.check_finite = config.check_finite;
  options.freeze = config.freeze;
  options.optimizer_state = optimizer_state_of(config.optimizer_state);
  options.offload = offload_of(config.offload);
  set_recompute(config.recompute, options);
  options.mlp_cut = mlp_cut_of(config.mlp_chunk);
  set_head(config.head, options);
  if (config.weight_slots > 0) options.weight_slots = static_cast<int>(config.weight_slots);
  if (config.grad_slots > 0) options.grad_slots = static_cast<int>(config.grad_slots);
  options.resident_state_layers = std::max<std::int64_t>(0, config.resident_state_layers);
  options.resident_layers = std::max<std::int64_t>(0, config.resident_layers);
  options.residuals = config.residuals == RunConfig::Residuals::kHost ? Residuals::kHost : Residuals::kDevice;
  options.vocab_chunk = config.vocab_chunk;
  options.threads = static_cast<int>(config.threads);
  return options;
}

DType dtype_of(const CommandLine& line, const std::filesystem::path& folder) {
  const bool given = line.dtype_given || !line.config_source.empty();
  return given ? line.config.dtype : StoredWeights(folder).dtype();
}

SamplerOptions sampler_options(const RunConfig& config) {
  return {.temperature = config.temperature,
          .top_k = config.top_k,
          .top_p = config.top_p,
          .seed = static_cast<std::uint64_t>(config.seed)};
}

TrainerOptions trainer_options(const RunConfig& config, const ModelConfig& model, std::int64_t n_sequences) {
  TrainerOptions options;
  options.schedule = {.schedule = schedule_of(config.schedule),
                      .lr = config.lr,
                      .steps = steps_of(config, n_sequences),
                      .warmup_steps = config.warmup_steps,
                      .decay_steps = config.decay_steps,
                      .min_lr_ratio = config.min_lr_ratio};
  learning_rate(options.schedule, 0);  // throws now what would be wrong at the first step
  options.log_every = config.log_every;
  options.eval_every = config.eval_every;
  options.eval_tokens = config.eval_tokens;
  options.save_every = config.save_every;
  options.byte_vocabulary = has_byte_vocabulary(model);
  return options;
}

}  // namespace ferry
