// SPDX-License-Identifier: Apache-2.0
// Words before and after a run.
#include "cli/train_report.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <utility>

#include "cli/plan_report.h"
#include "core/human_units.h"
#include "core/simd.h"
#include "data/token_shard.h"
#include "train/sampler.h"

namespace ferry {
namespace {

std::string describe_schedule(const RunConfig& config) {
  static constexpr std::array<const char*, 4> kNames{"constant", "linear", "cosine", "wsd"};
  return fmt::format("lr {:g} {}", config.lr, kNames[static_cast<std::size_t>(config.schedule)]);
}

/// What AdamW keeps, how it rounds, the instruction set that it really runs with, and where.
std::string describe_optimizer(const EngineOptions& options, const PoolPlacement& pool) {
  const bool rounds = moment_dtype(options.dtype, options.optimizer_state) == DType::kBf16;
  const std::string rounding = rounds ? fmt::format(", {} rounding", to_string(options.adamw.rounding)) : "";
  const std::string place = options.offload == Offload::kNone
                                ? "on the device"
                                : fmt::format("{} on {}", to_string(adamw_path(simd_level())), pool.describe());
  return fmt::format("AdamW, {} state{}, {}", to_string(options.optimizer_state), rounding, place);
}

std::string describe_run(const StartReport& report) {
  const RunConfig& config = report.line.config;
  const double n_tokens = static_cast<double>(report.steps) * static_cast<double>(config.sequences() * config.seq_len);
  const double epochs = static_cast<double>(report.steps) * static_cast<double>(config.sequences()) /
                        static_cast<double>(report.train_data.n_sequences());
  return fmt::format("{} steps of {} x {} tokens ({} tokens, {:.2f} epochs), {}, into {}", grouped(report.steps),
                     config.sequences(), config.seq_len, human_count(n_tokens), epochs, describe_schedule(config),
                     config.output);
}

}  // namespace

std::vector<std::string> describe_start(const StartReport& report) {
  const RunConfig& config = report.line.config;
  TextReport text;
  text.add("config", report.line.config_source.empty() ? "flags alone" : report.line.config_source);
  const std::string name = config.model.empty() ? config.init_from : config.model;
  const std::int64_t n_parameters = report.engine.parameters().n_parameters();
  text.add("model", name + ": " + describe_model(report.model, n_parameters, config.dtype));
  if (!config.init_from.empty()) text.add("weights", "from " + config.init_from);
  text.add("data", describe_data(config.train_data, report.train_data));
  if (report.val_data != nullptr) text.add("", "validation " + describe_data(config.val_data, *report.val_data));
  const Capabilities& backend = report.backend.capabilities();
  const EngineOptions& options = report.plan.step->options;
  text.add("backend", backend.name + ": " + backend.description);
  text.add("attention", describe_attention(options, report.model, report.backend));
  text.add("offload", describe_offload(options, report.model.n_layers));
  for (const std::string& note : report.plan.notes) text.add("", note);
  text.add("optimizer", describe_optimizer(options, report.engine.pool_placement()));
  const std::vector<std::string> table = memory_table(report.engine.device_memory(), report.engine.host_memory());
  text.add_lines("memory", table);
  add_expected(text, report.plan, backend.is_device);
  text.add("run", describe_run(report));
  if (report.resumed != nullptr) {
    text.add("resume", fmt::format("after step {}, from {}", grouped(report.resumed->state().trainer.step),
                                   report.resumed->folder().string()));
  }
  return std::move(text).lines();
}

std::vector<std::string> describe_end(const EndReport& report) {
  const TrainResult& result = report.result;
  TextReport text;
  const std::string speed = result.tokens_per_s ? fmt::format(": {} tokens/s", human_count(*result.tokens_per_s)) : "";
  text.add("trained",
           fmt::format("{} steps, {} tokens in {}{}", grouped(result.steps),
                       human_count(static_cast<double>(result.tokens)), human_duration(result.elapsed_s), speed));
  if (result.step_ms && report.expected_step_ms) {
    text.add("", fmt::format("{} a step; the plan expected {}", human_step_time(*result.step_ms / 1e3),
                             human_step_time(*report.expected_step_ms / 1e3)));
  }
  if (result.skipped_steps > 0) {
    text.add("", fmt::format("{} steps skipped: not finite", grouped(result.skipped_steps)));
  }
  if (result.steps > 0) {
    text.add("loss", fmt::format("training {:.4f} (mean of the last {} steps)", result.loss,
                                 std::min<std::int64_t>(result.steps, LossHistory::kTail)));
  }
  if (result.last_eval) text.add("", describe(*result.last_eval));
  if (!report.weights.empty()) text.add_line("weights", report.weights.string() + ", a Hugging Face folder");
  text.add_line("metrics", report.folder.metrics().string());
  text.add_line("curve", report.folder.plot().string());
  if (report.byte_vocabulary && !report.weights.empty()) {
    text.add_line("try", fmt::format("ferry generate {}", report.folder.path().string()));
  }
  return std::move(text).lines();
}

std::set<std::string> words_of(const std::vector<TokenSource>& sources) {
  constexpr std::int64_t kPieceBytes = std::int64_t{1} << 20;
  std::set<std::string> words;
  std::int64_t budget = kMaxWordBytes;
  std::vector<std::uint32_t> ids;
  std::string text;
  for (const TokenSource& source : sources) {
    const TokenShard shard(source);
    for (std::int64_t first = 0; first < shard.size() && budget > 0; first += kPieceBytes) {
      ids.resize(static_cast<std::size_t>(std::min(kPieceBytes, shard.size() - first)));
      shard.read(first, ids);
      budget -= std::ssize(ids);
      for (const std::uint32_t id : ids) text.push_back(static_cast<char>(id));
      // The last word may go on in the next piece.
      const std::size_t end = text.find_last_of(" \n") == std::string::npos ? 0 : text.find_last_of(" \n");
      for (std::string& word : split_words(std::string_view(text).substr(0, end))) words.insert(std::move(word));
      text.erase(0, end);
    }
    for (std::string& word : split_words(text)) words.insert(std::move(word));
    text.clear();
  }
  return words;
}

}  // namespace ferry
